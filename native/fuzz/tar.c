/* The decoder of tar headers under libFuzzer: an input is an archive, whose contents are skipped. */
#include <stdlib.h>
#include <string.h>

#include "../agent/tar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct tar_decoder decoder = {0};
    const char *wrong = NULL;
    int errnum = 0;
    while (!wrong && size >= TAR_BLOCK) {
        struct tar_block block;
        struct tar_entry entry;
        memcpy(&block, data, TAR_BLOCK);
        data += TAR_BLOCK;
        size -= TAR_BLOCK;
        /* Headers that the fuzzer made whole but for their sum. */
        uint32_t sum = tar_checksum(&block);
        for (int i = 5; i >= 0; i--, sum /= 8)
            block.checksum[i] = (char)('0' + sum % 8);
        block.checksum[6] = 0;
        wrong = tar_decode_block(&decoder, &block, &entry, &errnum);
        if (wrong)
            break;
        size_t content = entry.size < size ? (size_t)entry.size : size;
        if (entry.type == 'x' || entry.type == 'g')
            wrong = tar_decode_pax(entry.type == 'g' ? &decoder.global : &decoder.local, (const char *)data, content,
                                   &errnum);
        else
            tar_said_clear(&decoder.local);
        size_t whole = content + tar_padding(content);
        data += whole < size ? whole : size;
        size -= whole < size ? whole : size;
    }
    if (wrong && !errnum)
        abort(); /* a refusal must say its errno */
    tar_said_clear(&decoder.local);
    tar_said_clear(&decoder.global);
    return 0;
}
