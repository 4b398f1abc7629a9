/* What the compile service keeps in the user's cache folder, looked up without it. An entry tells what is known of
 * a model with certain options on this processor; it is found under a name that all of these decide about, and holds
 * only while the files beside the model are what they were. A package is what runs the model. Whatever is wrong
 * with a file, or its folder, or if others may write to it, it counts as missing. */
#ifndef ORTHRUS_CACHE_H
#define ORTHRUS_CACHE_H

#include "content.h"
#include "message.h"

enum { NAME_BYTES = 2 * DIGEST_BYTES + 1 };

typedef char Name[NAME_BYTES];

/* What contents are told with. False: the folder has no secret, and so nothing else. */
bool cache_key(struct content_key *key);
void hexadecimal(const Digest digest, Name name);
/* The name of what is known of a model of this content, with options that were written to `options`. */
void cache_name(const Digest content, const struct message *options, Name name);
/* The name of the note that says which package has a model's plan for these sizes of all inputs. */
void cache_note_name(const Name model, const int64_t *sizes, size_t count, Name name);
bool cache_read(const char *name, struct message *entry);

struct mapped {
    unsigned char *bytes;
    size_t size, whole;
};

/* A package, read-only, all of it compared with what it was written as. */
bool cache_map(const struct content_key *key, const char *name, struct mapped *mapped);
void cache_unmap(struct mapped *mapped);

#endif
