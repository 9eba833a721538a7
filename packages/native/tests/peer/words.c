#include "words.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether the next member of the reply needs a comma before it. */
static bool has_members = false;

void words_parse(char *line, words *out) {
    memset(out, 0, sizeof *out);
    line[strcspn(line, "\n")] = 0;
    out->command = strsep(&line, "\t");
    for (char *field; (field = strsep(&line, "\t")) != NULL;) {
        require(out->count < FIELDS_MAX, "too many fields");
        out->keys[out->count] = strsep(&field, "=");
        require(field != NULL, "a field without =");
        out->values[out->count++] = field;
    }
}

const char *words_text(const words *words, const char *key) {
    for (size_t at = 0; at < words->count; at++) {
        if (strcmp(words->keys[at], key) == 0) {
            return words->values[at];
        }
    }
    return NULL;
}

int64_t words_int(const words *words, const char *key, int64_t missing) {
    const char *text = words_text(words, key);
    return text ? strtoll(text, NULL, 10) : missing;
}

uint64_t words_size(const words *words, const char *key, uint64_t missing) {
    const char *text = words_text(words, key);
    return text ? strtoull(text, NULL, 10) : missing;
}

double words_real(const words *words, const char *key, double missing) {
    const char *text = words_text(words, key);
    return text ? strtod(text, NULL) : missing;
}

bool words_flag(const words *words, const char *key) { return words_int(words, key, 0) != 0; }

word_list words_items(const words *words, const char *key) {
    word_list list = {0};
    /* The values are writable: `words_parse` points them into the line. */
    char *rest = (char *)words_text(words, key);
    if (rest == NULL) {
        return list;
    }
    for (char *item; (item = strsep(&rest, "\x1f")) != NULL;) {
        require(list.count < ITEMS_MAX, "too many items");
        list.items[list.count++] = item;
    }
    return list;
}

uint32_t words_numbers(const words *words, const char *key, uint64_t *out, uint32_t most) {
    const char *rest = words_text(words, key);
    uint32_t count = 0;
    while (rest != NULL && *rest != 0) {
        require(count < most, "too many numbers");
        char *end;
        out[count++] = strtoull(rest, &end, 10);
        rest = *end == ',' ? end + 1 : NULL;
    }
    return count;
}

static void quote(const char *text) {
    putchar('"');
    for (; *text; text++) {
        unsigned char byte = (unsigned char)*text;
        if (byte == '"' || byte == '\\') {
            printf("\\%c", byte);
        } else if (byte < 0x20) {
            printf("\\u%04x", byte);
        } else {
            putchar(byte);
        }
    }
    putchar('"');
}

static void member(const char *key) {
    if (has_members) {
        putchar(',');
    }
    has_members = true;
    if (key != NULL) {
        quote(key);
        putchar(':');
    }
}

void reply_text(const char *key, const char *text) {
    member(key);
    if (text != NULL) {
        quote(text);
    } else {
        fputs("null", stdout);
    }
}

void reply_int(const char *key, int64_t number) {
    member(key);
    printf("%" PRId64, number);
}

void reply_flag(const char *key, bool flag) {
    member(key);
    fputs(flag ? "true" : "false", stdout);
}

void reply_numbers(const char *key, const uint64_t *numbers, size_t count) {
    reply_open(key, '[');
    for (size_t at = 0; at < count; at++) {
        reply_int(NULL, (int64_t)numbers[at]);
    }
    reply_close(']');
}

void reply_texts(const char *key, const char *const *texts, size_t count) {
    reply_open(key, '[');
    for (size_t at = 0; at < count; at++) {
        reply_text(NULL, texts[at]);
    }
    reply_close(']');
}

void reply_open(const char *key, char bracket) {
    member(key);
    putchar(bracket);
    has_members = false;
}

void reply_close(char bracket) {
    putchar(bracket);
    has_members = true;
}

void reply_send(void) {
    putchar('\n');
    has_members = false;
    require(fflush(stdout) == 0, "stdout is closed");
}

void require(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "peer: %s (%s)\n", what, strerror(errno));
        _Exit(70);
    }
}

void *file_read(const char *path, uint64_t *nbytes) {
    FILE *file = fopen(path, "rb");
    require(file != NULL, path);
    require(fseek(file, 0, SEEK_END) == 0, path);
    long end = ftell(file);
    require(end >= 0, path);
    *nbytes = (uint64_t)end;
    rewind(file);
    void *data = malloc(end ? (size_t)end : 1);
    require(data != NULL, "no memory");
    require(fread(data, 1, (size_t)end, file) == (size_t)end, path);
    fclose(file);
    return data;
}

void file_write(const char *path, const void *data, uint64_t nbytes) {
    FILE *file = fopen(path, "wb");
    require(file != NULL, path);
    require(fwrite(data, 1, nbytes, file) == nbytes, path);
    require(fclose(file) == 0, path);
}
