/* The lines that the peer reads and writes. Knows no verbs.
 *
 * A command is one line of fields separated by tabs: the name of the command, then KEY=VALUE. A list has its items
 * separated by the unit separator (0x1f). A reply is one JSON object in one line.
 */
#ifndef PEER_WORDS_H
#define PEER_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FIELDS_MAX = 32, ITEMS_MAX = 256 };

typedef struct {
    const char *command;
    size_t count;
    const char *keys[FIELDS_MAX];
    char *values[FIELDS_MAX];
} words;

typedef struct {
    size_t count;
    const char *items[ITEMS_MAX];
} word_list;

/* Parses a line in place. The fields point into the line. */
void words_parse(char *line, words *out);

/* The value of a field; NULL if the command does not have it. */
const char *words_text(const words *words, const char *key);

/* The value of a field as a number, or a default. */
int64_t words_int(const words *words, const char *key, int64_t missing);
uint64_t words_size(const words *words, const char *key, uint64_t missing);
double words_real(const words *words, const char *key, double missing);
bool words_flag(const words *words, const char *key);

/* The items of a list, which is split in place; none if the command does not have the field. */
word_list words_items(const words *words, const char *key);

/* Numbers separated by commas; returns how many there are, at most `most`. */
uint32_t words_numbers(const words *words, const char *key, uint64_t *out, uint32_t most);

/* Writes members of the current reply. */
void reply_text(const char *key, const char *text);
void reply_int(const char *key, int64_t number);
void reply_flag(const char *key, bool flag);
void reply_numbers(const char *key, const uint64_t *numbers, size_t count);
void reply_texts(const char *key, const char *const *texts, size_t count);

/* Members of nested objects: `reply_open(key, '[')`, and `reply_open(NULL, '{')` for an item of a list. */
void reply_open(const char *key, char bracket);
void reply_close(char bracket);

/* Sends the reply. */
void reply_send(void);

/* Ends this program with a message if a condition of its own is not met, such as a file that can't be read. */
void require(bool condition, const char *what);

/* Reads or writes a whole file. The caller frees the result of `file_read`. */
void *file_read(const char *path, uint64_t *nbytes);
void file_write(const char *path, const void *data, uint64_t nbytes);

#endif
