#include <hoplite/hoplite.h>
#include <stdio.h>

int main(void) {
    float weights[2][3] = {{0, 1, 2}, {3, 4, 5}};
    uint64_t shape[] = {2, 3};
    hoplite_array array = {weights, sizeof weights, "float32", 2, shape};
    hoplite_put_options options = HOPLITE_INIT(hoplite_put_options);
    options.name = "weights/1";
    hoplite_client client;
    hoplite_ref ref;
    if (hoplite_init(NULL, NULL, 10, &client) || hoplite_put(client, &array, &options, 10, &ref)) {
        fprintf(stderr, "%s\n", hoplite_last_error());
        return 1;
    }
    printf("%s\n", ref.text);
    return hoplite_client_close(client);
}
