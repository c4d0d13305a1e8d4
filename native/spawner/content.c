/* What regular files hold, copied by the thread that walks the tree and by one beside it. Most of a copy is the kernel
 * finding and filling pages, which two processors do in little more than half the time. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include "state.h"

enum {
    WORTH_HANDING_OVER = 16 << 10, /* bytes of a file: below, handing it over costs as much as copying it */
    WORTH_HELP = 256 << 10         /* bytes copied, before a thread is started */
};

/* By sendfile: between two filesystems in memory it copies each page once, where read and write copy it twice. */
static bool fill_range(int from, int to, off_t at, off_t end, uint64_t *bytes) {
    if (at > 0 && lseek(to, at, SEEK_SET) < 0)
        return false;
    while (at < end) {
        ssize_t sent = sendfile(to, from, &at, (size_t)(end - at));
        if (sent == 0)
            errno = EIO; /* shorter than it says */
        if (sent <= 0)
            return false;
        *bytes += (uint64_t)sent;
    }
    return true;
}

/* Holes stay holes: a file of a terabyte that holds nothing costs nothing. */
static bool fill(const struct content *file, uint64_t *bytes) {
    if (file->st.st_blocks * 512 >= file->st.st_size)
        return fill_range(file->from, file->to, 0, file->st.st_size, bytes);
    if (ftruncate(file->to, file->st.st_size) != 0)
        return false;
    for (off_t start, end = 0; (start = lseek(file->from, end, SEEK_DATA)) >= 0;) {
        if ((end = lseek(file->from, start, SEEK_HOLE)) < 0 || !fill_range(file->from, file->to, start, end, bytes))
            return false;
    }
    return errno == ENXIO;
}

static void put_away(const struct content *file) {
    int saved = errno;
    close(file->from);
    close(file->to);
    errno = saved;
}

static const char *complete(const struct content *file, uint64_t *bytes) {
    const char *step = fill(file, bytes) ? entry_describe(file->from, file->to, &file->st) : "copy a file";
    put_away(file);
    return step;
}

/* ---- the other thread ---- */

static void *help(void *given) {
    struct helper *helper = given;
    pthread_mutex_lock(&helper->lock);
    for (;;) {
        while (helper->taken == helper->given && !helper->over)
            pthread_cond_wait(&helper->change, &helper->lock);
        if (helper->taken == helper->given)
            break;
        struct content file = helper->waiting[helper->taken++ % HELPER_WAITING];
        pthread_mutex_unlock(&helper->lock);
        const char *step = complete(&file, &helper->bytes);
        int error = errno;
        pthread_mutex_lock(&helper->lock);
        if (step && !helper->step) {
            helper->step = step;
            helper->error = error;
        }
    }
    pthread_mutex_unlock(&helper->lock);
    return NULL;
}

/* ---- the one that walks ---- */

/* Without a thread all is done by the one there is. */
static bool has_help(struct copy *copy) {
    struct helper *helper = &copy->helper;
    if (!helper->started && copy->done.bytes >= WORTH_HELP) {
        pthread_mutex_init(&helper->lock, NULL);
        pthread_cond_init(&helper->change, NULL);
        helper->started = pthread_create(&helper->thread, NULL, help, helper) == 0;
    }
    return helper->started;
}

const char *content_copy(struct copy *copy, const struct content *file) {
    struct helper *helper = &copy->helper;
    if (file->st.st_size < WORTH_HANDING_OVER || !has_help(copy))
        return complete(file, &copy->done.bytes);
    pthread_mutex_lock(&helper->lock);
    const char *step = helper->step;
    bool handed = !step && helper->given - helper->taken < HELPER_WAITING;
    if (handed) {
        helper->waiting[helper->given++ % HELPER_WAITING] = *file;
        pthread_cond_signal(&helper->change);
    }
    pthread_mutex_unlock(&helper->lock);
    if (!step && !handed)
        return complete(file, &copy->done.bytes);
    if (step) {
        errno = helper->error;
        put_away(file);
    }
    return step;
}

const char *content_finish(struct copy *copy, const char *step) {
    struct helper *helper = &copy->helper;
    int saved = errno;
    if (helper->started) {
        pthread_mutex_lock(&helper->lock);
        helper->over = true;
        pthread_cond_signal(&helper->change);
        pthread_mutex_unlock(&helper->lock);
        pthread_join(helper->thread, NULL);
        copy->done.bytes += helper->bytes;
        if (!step && (step = helper->step))
            saved = helper->error;
    }
    errno = saved;
    return step;
}
