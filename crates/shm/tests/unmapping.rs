//! Checks that memory returns to the system. It is a separate program because it counts the mappings of the whole
//! process.

#![cfg(not(loom))]

use std::sync::Arc;

use hoplite_shm::{Arena, Mapping, Slot, WriterId};

fn mapped() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().matches("/memfd:hoplite").count()
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn nothing_stays_mapped_or_open() {
    let files = open_files();
    let arena = Arena::new(1 << 20);
    let slots: Vec<Slot> = (0..4).map(|_| arena.allocate(900_000, None).unwrap()).collect();
    assert_eq!(mapped(), 4);
    let (fd, bytes) = arena.descriptor(slots[0].extent(), WriterId(1)).unwrap();
    let reader = Arc::new(Mapping::map_readonly(&fd, bytes).unwrap());
    let view = Slot::open(reader.clone(), slots[0].offset(), slots[0].len()).unwrap();
    assert_eq!(mapped(), 5);
    let last = slots[3].clone();
    drop(slots);
    assert_eq!(mapped(), 5);
    arena.trim();
    assert_eq!(arena.take_gone().len(), 3);
    assert_eq!(mapped(), 2);
    drop((reader, fd));
    assert_eq!(mapped(), 2, "the view keeps its mapping");
    drop((view, last));
    assert_eq!(mapped(), 1);
    drop(arena);
    assert_eq!((mapped(), open_files()), (0, files));
}
