//! Tries every way in which a process could change memory that it may only read. The kernel must refuse each.
//!
//! The test uses no node: it takes the descriptor that a node would send, and makes the system calls itself.

#![cfg(not(loom))]

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::Arc;

use hoplite_shm::{Arena, Mapping, Slot, WriterId};
use rustix::fs::{self, FallocateFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, MprotectFlags, ProtFlags};

const LEN: u64 = 100_000;
const WRITER: WriterId = WriterId(1);
const READER: WriterId = WriterId(2);

/// Memory with an object, as a reader receives it.
struct Lent {
    slot: Slot,
    descriptor: Arc<OwnedFd>,
    extent_len: u64,
    /// The writer's own mapping, if the writer is another process.
    _written: Option<Arc<Mapping>>,
}

impl Lent {
    fn by_the_node() -> Self {
        let arena = Arena::new(1 << 20);
        let slot = arena.allocate(LEN, None).unwrap();
        slot.copy_from(&[7; LEN as usize], |_| {}).unwrap();
        let (descriptor, extent_len) = arena.descriptor(slot.extent(), READER).unwrap();
        Self { slot, descriptor, extent_len, _written: None }
    }

    fn by_a_writer() -> Self {
        let arena = Arena::new(1 << 20);
        let slot = arena.allocate(LEN, Some(WRITER)).unwrap();
        let (fd, extent_len) = arena.descriptor(slot.extent(), WRITER).unwrap();
        let mapping = Arc::new(Mapping::map_writable(fd.as_fd(), extent_len).unwrap());
        arena.seal(slot.extent(), WRITER).unwrap();
        let written = Slot::open(mapping.clone(), slot.offset(), LEN).unwrap();
        written.copy_from(&[7; LEN as usize], |_| {}).unwrap();
        let (descriptor, _) = arena.descriptor(slot.extent(), READER).unwrap();
        Self { slot, descriptor, extent_len, _written: Some(mapping) }
    }

    /// Maps the whole extent, like a program that does not use this crate.
    fn map(&self, by: impl AsFd, rights: ProtFlags) -> Result<*mut c_void, Errno> {
        // SAFETY: no address is requested, so the mapping replaces none.
        unsafe {
            mm::mmap(ptr::null_mut(), self.extent_len as usize, rights, MapFlags::SHARED, by, 0)
        }
    }

    /// Opens a new descriptor of the same memory for writing.
    fn reopened(&self) -> File {
        let path = format!("/proc/self/fd/{}", self.descriptor.as_raw_fd());
        OpenOptions::new().read(true).write(true).open(path).unwrap()
    }

    fn assert_unchanged(&self, way: &str) {
        assert!(
            self.slot.bytes().unwrap().to_vec().iter().all(|byte| *byte == 7),
            "changed by {way}"
        );
        let facts = fs::fstat(&self.descriptor).unwrap();
        assert_eq!(facts.st_size as u64, self.extent_len, "resized by {way}");
        assert_eq!(facts.st_blocks as u64 * 512, self.extent_len, "cut by {way}");
    }
}

#[test]
fn every_write_by_a_reader_is_refused() {
    let both = ProtFlags::READ | ProtFlags::WRITE;
    for lent in [Lent::by_the_node(), Lent::by_a_writer()] {
        let flags = fs::fcntl_getfl(&lent.descriptor).unwrap();
        assert!(!flags.intersects(fs::OFlags::WRONLY | fs::OFlags::RDWR), "{flags:?}");
        // The user is the same, so the kernel opens the file again. The seals apply to it too.
        let reopened = lent.reopened();
        let refused = [Errno::PERM, Errno::ACCESS, Errno::BADF, Errno::INVAL];
        let mut ways: Vec<(&str, Result<(), Errno>)> = Vec::new();
        for descriptor in [lent.descriptor.as_fd(), reopened.as_fd()] {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            ways.extend([
                ("a writable mapping", lent.map(descriptor, both).map(drop)),
                ("write", rustix::io::pwrite(descriptor, b"x", lent.slot.offset()).map(drop)),
                ("a hole", fs::fallocate(descriptor, hole, 0, lent.extent_len)),
                ("cutting", fs::ftruncate(descriptor, 0)),
                ("growing", fs::ftruncate(descriptor, 2 * lent.extent_len)),
                ("a seal", fs::fcntl_add_seals(descriptor, SealFlags::WRITE)),
            ]);
            let mapped = lent.map(descriptor, ProtFlags::READ).unwrap();
            let len = lent.extent_len as usize;
            let raised = MprotectFlags::READ | MprotectFlags::WRITE;
            // SAFETY: the range was mapped above and nothing else refers to it. The call is expected to change nothing.
            ways.push(("mprotect", unsafe { mm::mprotect(mapped, len, raised) }));
            // SAFETY: as above.
            ways.push(("MADV_REMOVE", unsafe { mm::madvise(mapped, len, Advice::LinuxRemove) }));
            // Write like a debugger, which can ignore the protection of a mapping where the kernel permits it.
            let memory = OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
            let at = mapped as u64 + lent.slot.offset() + 8192;
            assert!(memory.write_at(b"x", at).is_err());
            lent.assert_unchanged("/proc/self/mem");
            // SAFETY: the range was mapped above and nothing refers to it.
            unsafe { mm::munmap(mapped, len) }.unwrap();
        }
        for (way, result) in ways {
            assert!(result.is_err_and(|errno| refused.contains(&errno)), "{way}: {result:?}");
            lent.assert_unchanged(way);
        }
        assert!((&reopened).write(b"x").is_err());
    }
}
