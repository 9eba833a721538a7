//! Maps one extent of memory into this process. Seals determine who may write it.
//!
//! It handles bytes and descriptors, not slots; it only keeps a list of the slots opened in it.
//!
//! ```text
//! created: sealed against shrink and grow -> writer maps it -> sealed: no new writable mapping, write() or mprotect
//! ```

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{self, FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use crate::available::{Available, Limit, available_bytes, file_size_limit};
use crate::error::ShmError;
use crate::extent::ExtentId;
use crate::opened::Opened;
use crate::units::PAGE_BYTES;

/// A shared mapping of an extent's memory; unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: u64,
    writable: bool,
    extent: ExtentId,
    opened: Mutex<Opened>,
}

// SAFETY: the pages belong to the mapping until it is dropped, and no thread has special rights to them. The slots
// decide who may access which bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above; the mapping's fields never change, except for the mutex.
unsafe impl Sync for Mapping {}

/// Bytes whose pages one call populates: a few milliseconds, during which no thread of the process can map or unmap
/// memory.
const POPULATE_BYTES: u64 = 4 << 20;

/// Bytes of a huge page on x86-64, and on Arm with pages of 4 KiB.
const HUGE_BYTES: u64 = 2 << 20;

/// Bytes of new memory committed by one call: 64 MiB. For longer mappings, the available memory is read again after
/// each call, because others also allocate during the second that a GiB takes.
const COMMIT_BYTES: u64 = 64 << 20;

/// The longest mapping that pointers can address.
pub(crate) const MAPPING_BYTES_MAX: u64 = isize::MAX as u64;

impl Mapping {
    /// Creates `len` bytes of zeroed memory, rounded up to whole pages, and maps them writable.
    ///
    /// All pages are committed before this returns, so accesses never fail later. The memory can neither shrink nor
    /// grow. It can be mapped writable until [`seal`](Self::seal).
    ///
    /// # Errors
    /// [`ShmError::NoMemory`] if the host or the control group cannot provide that much.
    pub fn create(len: u64) -> Result<(Self, OwnedFd), ShmError> {
        Self::create_of(len, &Available::default(), true)
    }

    /// Like [`create`](Self::create), from the memory that the system has left. Pass `is_filled_here` as false if
    /// another process fills the memory: populating the pages here as well would take as long as creating them.
    pub(crate) fn create_of(
        len: u64,
        left: &Available,
        is_filled_here: bool,
    ) -> Result<(Self, OwnedFd), ShmError> {
        Self::create_sealed(len, left, is_filled_here, SealFlags::SHRINK | SealFlags::GROW)
    }

    /// Like [`create_of`](Self::create_of), with only these seals. Without `SHRINK`, the caller is responsible for the
    /// readers: see [`crate::Lent`].
    pub(crate) fn create_sealed(
        len: u64,
        left: &Available,
        is_filled_here: bool,
        seals: SealFlags,
    ) -> Result<(Self, OwnedFd), ShmError> {
        let too_large = ShmError::TooLarge { len, max: MAPPING_BYTES_MAX };
        let len = match len.checked_next_multiple_of(PAGE_BYTES) {
            Some(0) => return Err(ShmError::Empty),
            Some(rounded) if rounded <= MAPPING_BYTES_MAX => rounded,
            _ => return Err(too_large),
        };
        let no_memory = |(available, limit)| ShmError::NoMemory { wanted: len, available, limit };
        // Check this first: exceeding the limit kills a process that does not ignore SIGXFSZ.
        let longest = file_size_limit();
        if len > longest {
            return Err(no_memory((longest, Limit::FileSize)));
        }
        left.take(len).map_err(no_memory)?;
        let failed = |call| {
            move |errno: Errno| match errno {
                Errno::NOMEM | Errno::NOSPC => no_memory(available_bytes()),
                Errno::FBIG => no_memory((file_size_limit(), Limit::FileSize)),
                errno => ShmError::System { call, len, source: errno.into() },
            }
        };
        let fd = fs::memfd_create("hoplite", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(failed("memfd_create"))?;
        fs::ftruncate(&fd, len).map_err(failed("ftruncate"))?;
        let mapping = Self::map(&fd, len, true)?;
        mapping.request_huge_pages();
        for begin in (0..len).step_by(COMMIT_BYTES as usize) {
            let bytes = (len - begin).min(COMMIT_BYTES);
            if begin > 0 {
                let (rest, limit) = available_bytes();
                if rest < len - begin {
                    return Err(no_memory((begin + rest, limit)));
                }
            }
            mapping.touch_blocks(begin, bytes);
            rustix::io::retry_on_intr(|| fs::fallocate(&fd, FallocateFlags::empty(), begin, bytes))
                .map_err(failed("fallocate"))?;
        }
        fs::fcntl_add_seals(&fd, seals).map_err(failed("fcntl"))?;
        if is_filled_here {
            mapping.populate();
        }
        Ok((mapping, fd))
    }

    /// Maps the first `len` bytes of memory created by another process, readable and writable.
    ///
    /// # Errors
    /// As for [`map_readonly`](Self::map_readonly); [`ShmError::System`] if the memory is already sealed.
    pub fn map_writable(fd: impl AsFd, len: u64) -> Result<Self, ShmError> {
        check_peer(&fd, len)?;
        let mapping = Self::map(&fd, len, true)?;
        mapping.populate();
        Ok(mapping)
    }

    /// Maps the first `len` bytes of memory created by another process, read-only.
    ///
    /// # Errors
    /// [`ShmError::Short`] and [`ShmError::NotSealed`] if reading could kill this process, because the memory is too
    /// short or could be truncated.
    pub fn map_readonly(fd: impl AsFd, len: u64) -> Result<Self, ShmError> {
        check_peer(&fd, len)?;
        Self::map(&fd, len, false)
    }

    /// Maps the first `len` bytes of a [`Lent`](crate::Lent) object, read-only. Its creator takes it back when this
    /// process reports that it no longer reads it. A later read kills this process.
    ///
    /// # Errors
    /// [`ShmError::Short`] if the memory is too short.
    pub fn map_lent(fd: impl AsFd, len: u64) -> Result<Self, ShmError> {
        check_length(&fd, len)?;
        Self::map(&fd, len, false)
    }

    /// Permanently denies new writable mappings, `write`, `mprotect` and further seals.
    ///
    /// Existing writable mappings stay writable. Sealing twice is not an error.
    pub fn seal(fd: impl AsFd) -> Result<(), ShmError> {
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        let failed =
            |errno: Errno| ShmError::System { call: "fcntl", len: 0, source: errno.into() };
        if fs::fcntl_get_seals(&fd).map_err(failed)?.contains(seals) {
            return Ok(());
        }
        fs::fcntl_add_seals(&fd, seals).map_err(failed)
    }

    /// Sets the extent id of this mapping, for [`Slot::extent`](crate::Slot::extent).
    pub fn with_extent(mut self, extent: ExtentId) -> Self {
        self.set_extent(extent);
        self
    }

    pub(crate) fn set_extent(&mut self, extent: ExtentId) {
        self.extent = extent;
    }

    /// The extent id; zero if none was set.
    pub fn extent(&self) -> ExtentId {
        self.extent
    }

    /// Bytes mapped.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Always false: a mapping has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether this process may write through it.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns the address of the byte at `offset`, which may be one past the end.
    pub(crate) fn at(&self, offset: u64) -> NonNull<u8> {
        assert!(offset <= self.len, "offset {offset} of {}", self.len);
        // SAFETY: the offset was just checked to lie in the mapping or at its end, and `len` fits an isize.
        unsafe { self.start.add(offset as usize) }
    }

    /// The slots opened in it.
    pub(crate) fn opened(&self) -> MutexGuard<'_, Opened> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps a file whose pages do not exist yet, to test lengths that no test machine can commit.
    #[cfg(test)]
    pub(crate) fn map_sparse(fd: impl AsFd, len: u64) -> Result<Self, ShmError> {
        Self::map(&fd, len, true)
    }

    fn map(fd: &impl AsFd, len: u64, writable: bool) -> Result<Self, ShmError> {
        let failed = |errno: Errno| match errno {
            Errno::NOMEM => {
                ShmError::NoMemory { wanted: len, available: 0, limit: Limit::AddressSpace }
            }
            errno => ShmError::System { call: "mmap", len, source: errno.into() },
        };
        let rights = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: no address is requested, so the mapping replaces none. The file keeps its length while it is read:
        // `create` sealed it against shrinking, or `check_peer` checked that. If it is lent, the node truncates it only
        // after this process has dropped the slot and reported that.
        let start =
            unsafe { mm::mmap(ptr::null_mut(), len as usize, rights, MapFlags::SHARED, fd, 0) }
                .map_err(failed)?;
        let start =
            NonNull::new(start.cast::<u8>()).expect("the kernel maps nothing at address 0 unasked");
        Ok(Self { start, len, writable, extent: ExtentId(0), opened: Mutex::default() })
    }

    /// Requests huge pages for this memory, of hosts with `shmem_enabled` set to `advise`.
    fn request_huge_pages(&self) {
        if self.len >= HUGE_BYTES {
            // All of it, although the end may be less than a huge page: a mapping in two parts would count twice for
            // `vm.max_map_count`.
            let _ = self.advise(0, self.len, Advice::LinuxHugepage);
        }
    }

    /// Allocates the whole blocks of a range as huge pages, where the host provides them on request: at the first
    /// access to a block, while `fallocate` would not. Elsewhere, this allocates the first small page of each block.
    fn touch_blocks(&self, begin: u64, bytes: u64) {
        let end = begin + bytes / HUGE_BYTES * HUGE_BYTES;
        let touch = |block| self.advise(block, PAGE_BYTES, Advice::LinuxPopulateWrite);
        // An old kernel refuses each.
        let _ = (begin..end).step_by(HUGE_BYTES as usize).try_for_each(touch);
    }

    /// Populates the page table in a few calls instead of one fault per 4 KiB.
    fn populate(&self) {
        for begin in (0..self.len).step_by(POPULATE_BYTES as usize) {
            let len = (self.len - begin).min(POPULATE_BYTES);
            let _ = self.advise(begin, len, Advice::LinuxPopulateWrite);
        }
    }

    /// Gives the kernel advice that changes no contents: to use huge pages, or to populate a range, which acts like
    /// touching each page. A failure only costs time.
    fn advise(&self, begin: u64, len: u64, advice: Advice) -> Result<(), Errno> {
        debug_assert!(matches!(advice, Advice::LinuxHugepage | Advice::LinuxPopulateWrite));
        assert!(len <= self.len - begin, "{len} bytes from {begin} on of {}", self.len);
        // SAFETY: the range was just checked to lie in the mapping, and such advice does not change its contents.
        unsafe { mm::madvise(self.at(begin).as_ptr().cast::<c_void>(), len as usize, advice) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is exactly the range that `map` mapped. Slots and guards hold an Arc of the mapping, so nothing
        // refers to it any more.
        let unmapped = unsafe { mm::munmap(self.start.as_ptr().cast(), self.len as usize) };
        debug_assert!(unmapped.is_ok(), "munmap of {} bytes: {unmapped:?}", self.len);
    }
}

/// Reopens the same memory with a read-only descriptor.
pub(crate) fn reopen_readonly(fd: &OwnedFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Validates memory received from a peer.
fn check_peer(fd: &impl AsFd, len: u64) -> Result<(), ShmError> {
    check_length(fd, len)?;
    // Only files with seals support this call. A regular file returns EINVAL and can be truncated by anyone.
    let seals = match fs::fcntl_get_seals(fd) {
        Ok(seals) => seals,
        Err(Errno::INVAL) => SealFlags::empty(),
        Err(errno) => {
            return Err(ShmError::System { call: "fcntl", len, source: errno.into() });
        }
    };
    if seals.contains(SealFlags::SHRINK) { Ok(()) } else { Err(ShmError::NotSealed { len }) }
}

fn check_length(fd: &impl AsFd, len: u64) -> Result<(), ShmError> {
    let failed = |call| move |errno: Errno| ShmError::System { call, len, source: errno.into() };
    if len == 0 {
        return Err(ShmError::Empty);
    }
    if len > MAPPING_BYTES_MAX {
        return Err(ShmError::TooLarge { len, max: MAPPING_BYTES_MAX });
    }
    let actual = fs::fstat(fd).map_err(failed("fstat"))?.st_size as u64;
    if actual < len { Err(ShmError::Short { actual, wanted: len }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 1 << 20;

    fn system_errno(error: ShmError) -> Option<i32> {
        match error {
            ShmError::System { source, .. } => source.raw_os_error(),
            other => panic!("{other}"),
        }
    }

    fn byte(mapping: &Mapping, offset: u64) -> u8 {
        // SAFETY: `at` checks the offset, and no other thread writes in a single-threaded test.
        unsafe { mapping.at(offset).read_volatile() }
    }

    fn set_byte(mapping: &Mapping, offset: u64, value: u8) {
        assert!(mapping.is_writable());
        // SAFETY: `at` checks the offset, the mapping is writable, and the test is single-threaded.
        unsafe { mapping.at(offset).write_volatile(value) }
    }

    #[test]
    fn a_second_mapping_sees_the_bytes() {
        let (ours, fd) = Mapping::create(LEN - 1).unwrap();
        assert_eq!(ours.len(), LEN);
        let client = Mapping::map_writable(&fd, LEN).unwrap();
        Mapping::seal(&fd).unwrap();
        let reader = Mapping::map_readonly(&fd, LEN).unwrap().with_extent(ExtentId(7));
        assert!(client.is_writable());
        assert!(!reader.is_writable());
        assert_eq!(reader.extent(), ExtentId(7));
        set_byte(&ours, 0, 1);
        set_byte(&client, LEN - 1, 2);
        assert_eq!((byte(&reader, 0), byte(&reader, 5), byte(&reader, LEN - 1)), (1, 0, 2));
    }

    #[test]
    fn sealed_memory_cannot_be_written_any_more() {
        let (_ours, fd) = Mapping::create(LEN).unwrap();
        Mapping::seal(&fd).unwrap();
        Mapping::seal(&fd).unwrap();
        let denied = Some(Errno::PERM.raw_os_error());
        assert_eq!(system_errno(Mapping::map_writable(&fd, LEN).unwrap_err()), denied);
        assert_eq!(rustix::io::write(&fd, b"x"), Err(Errno::PERM));
        assert_eq!(fs::ftruncate(&fd, 0), Err(Errno::PERM));
        assert_eq!(fs::ftruncate(&fd, 2 * LEN), Err(Errno::PERM));
        assert_eq!(fs::fcntl_add_seals(&fd, SealFlags::WRITE), Err(Errno::PERM));
        // A new descriptor of the same memory has no more rights.
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let again = std::fs::File::options().read(true).write(true).open(path).unwrap();
        assert_eq!(system_errno(Mapping::map_writable(&again, LEN).unwrap_err()), denied);
        // A read-only mapping has none either.
        let reader = Mapping::map_readonly(&fd, LEN).unwrap();
        // SAFETY: the range is this mapping's; the call is expected to change nothing.
        let raised = unsafe {
            let flags = mm::MprotectFlags::READ | mm::MprotectFlags::WRITE;
            mm::mprotect(reader.start.as_ptr().cast(), LEN as usize, flags)
        };
        assert_eq!(raised, Err(Errno::ACCESS));
    }

    #[test]
    fn memory_from_a_peer_is_validated() {
        let (_ours, fd) = Mapping::create(LEN).unwrap();
        let error = Mapping::map_readonly(&fd, LEN + 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot map 1048577 bytes of memory that has only 1048576 bytes"
        );
        let open =
            fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        fs::ftruncate(&open, LEN).unwrap();
        assert!(matches!(Mapping::map_readonly(&open, LEN), Err(ShmError::NotSealed { len: LEN })));
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(matches!(Mapping::map_readonly(&file, 1), Err(ShmError::NotSealed { len: 1 })));
        let absurd = Mapping::map_readonly(&fd, u64::MAX);
        assert!(matches!(absurd, Err(ShmError::TooLarge { .. })));
        assert!(matches!(Mapping::map_readonly(&fd, 0), Err(ShmError::Empty)));
    }

    #[test]
    fn absurd_sizes_are_errors() {
        assert!(matches!(Mapping::create(0), Err(ShmError::Empty)));
        assert!(matches!(Mapping::create(1 << 50), Err(ShmError::NoMemory { .. })));
        assert!(matches!(Mapping::create(1 << 63), Err(ShmError::TooLarge { .. })));
        assert!(matches!(Mapping::create(u64::MAX), Err(ShmError::TooLarge { .. })));
    }
}
