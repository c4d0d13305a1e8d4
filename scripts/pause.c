/* What holds a pod's namespaces open: waits for the end, and reaps. Linked statically; the whole of the image. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int number) {
    (void)number;
    _exit(0);
}

static void reap(int number) {
    (void)number;
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
}

int main(void) {
    if (signal(SIGTERM, end) == SIG_ERR || signal(SIGINT, end) == SIG_ERR || signal(SIGCHLD, reap) == SIG_ERR)
        return EXIT_FAILURE;
    for (;;)
        pause();
}
