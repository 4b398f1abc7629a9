/* Prints what a file's content is told by, read from the file and from memory. By vectors and by words it is the
 * same. The secret is read from the standard input. */
#include "content.c"

#include <fcntl.h>
#include <stdio.h>

static void print(const Digest digest) {
    for (size_t i = 0; i < DIGEST_BYTES; i++) printf("%02x", digest[i]);
    printf("\n");
}

int main(int count, char **words) {
    static struct content_key key;
    static unsigned char bytes[1 << 20];
    unsigned char secret[SECRET_BYTES];
    Digest digest;
    int file = count == 2 ? open(words[1], O_RDONLY) : -1;
    if (read(0, secret, sizeof secret) != sizeof secret) return 2;
    content_key_make(&key, secret);
    if (!content_of_file(&key, file, digest)) return 3;
    print(digest);
    ssize_t size = filled(file, bytes, sizeof bytes, 0);
    content_of_bytes(&key, bytes, (size_t)size, digest);
    print(digest);
    for (size_t at = 0; at + CONTENT_BLOCK <= (size_t)size; at += CONTENT_BLOCK) {
        if (told(&key, bytes + at) != told_by_words(&key, bytes + at)) return 4;
    }
    return 0;
}
