#include <hoplite/hoplite.h>
#include <stdio.h>
#include <sys/epoll.h>

int main(void) {
    hoplite_client client;
    if (hoplite_init(NULL, NULL, 10, &client) != HOPLITE_OK) {
        fprintf(stderr, "%s\n", hoplite_last_error());
        return 1;
    }

    hoplite_queue queue;
    hoplite_pending call;
    int ready;
    void* name;
    hoplite_queue_new(&queue);
    hoplite_queue_fd(queue, &ready);
    hoplite_get_async(client, "weights/1", NULL, 10, &call);
    hoplite_pending_enqueue(call, queue, "weights/1");

    int loop = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(loop, EPOLL_CTL_ADD, ready, &event); /* next to the other descriptors of the program */
    epoll_wait(loop, &event, 1, -1);
    while (hoplite_queue_next(queue, &call, &name) == HOPLITE_OK) {
        hoplite_view view = HOPLITE_INIT(hoplite_view);
        if (hoplite_pending_take_view(call, &view) != HOPLITE_OK) {
            fprintf(stderr, "%s\n", hoplite_last_error());
            return 1;
        }
        printf("%s has %d bytes\n", (const char*)name, (int)view.nbytes);
        hoplite_view_release(&view);
    }

    hoplite_queue_close(queue);
    return hoplite_client_close(client);
}
