/* A program of a user: puts an array and gets it. Prints the version of the library that it runs with. */
#include <hoplite/hoplite.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    const float numbers[] = {1, 2, 3, 4};
    const uint64_t shape[] = {4};
    const hoplite_array array = {numbers, sizeof numbers, "float32", 1, shape};
    hoplite_node_options options = HOPLITE_INIT(hoplite_node_options);
    hoplite_view view = HOPLITE_INIT(hoplite_view);
    hoplite_node node;
    hoplite_client client;
    hoplite_ref ref;
    options.capacity = 16 << 20;
    if (hoplite_node_start(&options, &node) || hoplite_node_client(node, NULL, &client) ||
        hoplite_put(client, &array, NULL, 30, &ref) || hoplite_get(client, ref.text, NULL, 30, &view)) {
        fprintf(stderr, "%s\n", hoplite_last_error());
        return 1;
    }
    if (view.nbytes != sizeof numbers || memcmp(view.data, numbers, sizeof numbers) != 0) return 2;
    if (hoplite_view_release(&view) || hoplite_client_close(client) || hoplite_node_close(node, 30, NULL)) return 3;
    printf("%s\n", hoplite_version());
    return 0;
}
