//! The file of a spilled object: its metadata, its bytes, and checksums with which each read detects corruption.
//!
//! ```text
//! 0          magic, version, length and checksum of the head; the head
//! a page     the bytes
//! then       the CRC-32C of each MiB of them; magic, how many there are, and the CRC-32C of those
//! ```
//! All numbers are little-endian. A file without the trailer is incomplete and unusable. Knows the folder only by the
//! given path.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, ErrorKind},
    ops::Range,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use hoplite_proto::{
    id::{Instance, ObjectId},
    inline::Inline,
    lifetime::Lifetime,
    limits::{INLINE_BYTES_MAX, OBJECT_BYTES_MAX},
    meta::Meta,
    node::SpilledCopy,
    wire,
};
use hoplite_shm::{Ready, Slot, file_size_limit};
use rustix::fs::{Advice, FallocateFlags};
use serde::{Deserialize, Serialize};

use crate::{frame::crc, store::StoredCopy};

const MAGIC: [u8; 8] = *b"HOPSPILL";
const END_MAGIC: [u8; 8] = *b"HOPSEND.";
const VERSION: u32 = 1;

/// Bytes before the header, and after the checksums.
const BEGIN_BYTES: usize = 20;
const END_BYTES: u64 = 16;

/// Bytes of the longest header: a name, a shape and a job, each of maximum length.
const HEAD_BYTES_MAX: u32 = 16 * 1024;

/// More file systems read without a copy if the data starts on a page.
const PAGE_BYTES: u64 = 4096;

/// Bytes written and read at once, with one checksum: 1 MiB, about a millisecond of disk time.
pub(crate) const CHUNK_BYTES: u64 = 1 << 20;

/// The header of a file: the object's metadata.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    id: ObjectId,
    instance: Instance,
    meta: Meta,
    lifetime: Option<Lifetime>,
    /// Time of the write, by the host's wall clock: a time to live also runs while no node does.
    written_ns: u64,
}

/// The bytes of a copy, in memory.
pub(super) enum Source<'a> {
    Slot(&'a Slot),
    Bytes(&'a [u8]),
}

impl Source<'_> {
    fn chunk(&self, range: Range<u64>) -> Option<Ready<'_>> {
        match self {
            Self::Slot(slot) => slot.ready(range),
            Self::Bytes(bytes) => Some(bytes.get(range.start as usize..range.end as usize)?.into()),
        }
    }
}

/// Why a copy was not written.
#[derive(Debug)]
pub(super) struct WriteError {
    error: io::Error,
    /// Whether the disk would not take another copy either.
    pub(super) is_disk_failing: bool,
}

impl WriteError {
    /// The error of a copy that can't be written, to a disk that can write others.
    const fn of_copy(error: io::Error) -> Self {
        Self { error, is_disk_failing: false }
    }
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> Self {
        // The limit is of a file, not of the disk.
        let is_disk_failing = error.kind() != ErrorKind::FileTooLarge;
        Self { error, is_disk_failing }
    }
}

impl From<rustix::io::Errno> for WriteError {
    fn from(errno: rustix::io::Errno) -> Self {
        io::Error::from(errno).into()
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// A file that was written completely.
#[derive(Debug)]
pub(crate) struct SpillFile {
    path: PathBuf,
    /// Offset and number of the object's bytes.
    at: u64,
    length: u64,
    sums: Vec<u32>,
}

/// Writes a copy to a new file and syncs it. None if `is_void` returned true meanwhile, because the file is no longer
/// needed. An incomplete file is removed.
///
/// The bytes are copied before they are written: a client may have the memory mapped writable, and a file whose
/// checksum covers other bytes would be lost.
///
/// Opens a file for sequential reading.
///
/// # Errors
pub(super) fn write(
    path: &Path,
    copy: &SpilledCopy,
    source: Source<'_>,
    buffer: &mut Vec<u8>,
    is_void: impl Fn() -> bool,
) -> Result<Option<SpillFile>, WriteError> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let written = fill(&file, path, copy, &source, buffer, is_void);
    if !matches!(written, Ok(Some(_))) {
        let _ = std::fs::remove_file(path);
    }
    written
}

fn fill(
    file: &File,
    path: &Path,
    copy: &SpilledCopy,
    source: &Source<'_>,
    buffer: &mut Vec<u8>,
    is_void: impl Fn() -> bool,
) -> Result<Option<SpillFile>, WriteError> {
    let (begin, length) = (begin_of(copy), copy.meta.size);
    let at = (begin.len() as u64).next_multiple_of(PAGE_BYTES);
    let chunks = length.div_ceil(CHUNK_BYTES);
    let end = at + length;
    let file_bytes = end + 4 * chunks + END_BYTES;
    // Writing beyond the limit would kill a process that does not ignore SIGXFSZ.
    if file_bytes > file_size_limit() {
        return Err(rustix::io::Errno::FBIG.into());
    }
    // A full disk fails here, before anything is written.
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, file_bytes) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
        Err(error) => return Err(error.into()),
    }
    file.write_all_at(&begin, 0)?;
    let mut sums = Vec::with_capacity(chunks as usize);
    for range in chunks_of(length) {
        if is_void() {
            return Ok(None);
        }
        let missing = || {
            let error = io::Error::new(ErrorKind::UnexpectedEof, "its bytes are missing");
            WriteError::of_copy(error)
        };
        let bytes = source.chunk(range.clone()).ok_or_else(missing)?;
        if buffer.len() < bytes.len() {
            buffer.resize(bytes.len(), 0);
        }
        let copy = &mut buffer[..bytes.len()];
        bytes.copy_to(copy);
        sums.push(crc(copy));
        file.write_all_at(copy, at + range.start)?;
    }
    let table: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
    let mut rest = table.clone();
    rest.extend_from_slice(&END_MAGIC);
    rest.extend_from_slice(&(sums.len() as u32).to_le_bytes());
    rest.extend_from_slice(&crc(&table).to_le_bytes());
    file.write_all_at(&rest, end)?;
    // A failing disk reports its error while the copy is still in memory.
    file.sync_data()?;
    Ok(Some(SpillFile { path: path.into(), at, length, sums }))
}

fn begin_of(copy: &SpilledCopy) -> Vec<u8> {
    let written_ns = now_ns();
    let SpilledCopy { id, instance, meta, lifetime, .. } = copy.clone();
    let lifetime = lifetime.map(|told| *told);
    let head = wire::encode(&Head { id, instance, meta, lifetime, written_ns });
    let mut begin = Vec::with_capacity(BEGIN_BYTES + head.len());
    begin.extend_from_slice(&MAGIC);
    begin.extend_from_slice(&VERSION.to_le_bytes());
    begin.extend_from_slice(&(head.len() as u32).to_le_bytes());
    begin.extend_from_slice(&crc(&head).to_le_bytes());
    begin.extend_from_slice(&head);
    begin
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn chunks_of(length: u64) -> impl Iterator<Item = Range<u64>> {
    (0..length.div_ceil(CHUNK_BYTES))
        .map(move |chunk| chunk * CHUNK_BYTES..((chunk + 1) * CHUNK_BYTES).min(length))
}

impl SpillFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file that an earlier node left, and reads its header.
    ///
    /// # Errors
    /// The error of the operating system, and [`ErrorKind::InvalidData`] if it is not a complete spill file.
    pub(super) fn open(path: &Path) -> io::Result<(Self, SpilledCopy)> {
        let file = open(path)?;
        let bytes = file.metadata()?.len();
        let mut begin = [0; BEGIN_BYTES];
        file.read_exact_at(&mut begin, 0)?;
        if begin[..8] != MAGIC || u32_at(&begin, 8) != VERSION {
            return Err(wrong("not a spill file of this version"));
        }
        let head_bytes = u32_at(&begin, 12);
        if head_bytes > HEAD_BYTES_MAX {
            return Err(wrong("its header is too long"));
        }
        let mut head = vec![0; head_bytes as usize];
        file.read_exact_at(&mut head, BEGIN_BYTES as u64)?;
        if crc(&head) != u32_at(&begin, 16) {
            return Err(wrong("checksum mismatch in its header"));
        }
        let head: Head = wire::decode(&head).map_err(|error| wrong(&error.to_string()))?;
        let Head { id, instance, meta, lifetime, written_ns } = head;
        let length = meta.size;
        if length > OBJECT_BYTES_MAX || !meta.is_consistent() {
            return Err(wrong("its header is not valid"));
        }
        let at = (BEGIN_BYTES as u64 + u64::from(head_bytes)).next_multiple_of(PAGE_BYTES);
        let chunks = length.div_ceil(CHUNK_BYTES);
        if bytes != at + length + 4 * chunks + END_BYTES {
            return Err(wrong("it is incomplete"));
        }
        let mut rest = vec![0; (4 * chunks + END_BYTES) as usize];
        file.read_exact_at(&mut rest, at + length)?;
        let (table, end) = rest.split_at((4 * chunks) as usize);
        let is_end = end[..8] == END_MAGIC
            && u64::from(u32_at(end, 8)) == chunks
            && u32_at(end, 12) == crc(table);
        if !is_end {
            return Err(wrong("it is incomplete"));
        }
        let sums = table.chunks_exact(4).map(|sum| u32_at(sum, 0)).collect();
        let this = Self { path: path.into(), at, length, sums };
        let inline = match length {
            0 => Some(Inline::from(Vec::new())),
            1..=INLINE_BYTES_MAX => {
                let mut bytes = Vec::new();
                this.chunk(&file, 0, &mut bytes)?;
                Some(Inline::from(bytes))
            }
            _ => None,
        };
        let lifetime = lifetime.map(|told| Box::new(passed(told, written_ns)));
        Ok((this, SpilledCopy { id, instance, meta, lifetime, inline }))
    }

    /// Reads the file into the memory of a copy. Each MiB becomes readable once its checksum is verified. Returns false
    /// if the copy was removed meanwhile.
    ///
    /// # Errors
    /// The error of the operating system, and [`ErrorKind::InvalidData`] for corrupt bytes.
    pub(super) fn read_into(&self, stored: &StoredCopy) -> io::Result<bool> {
        if stored.slot.len() != self.length {
            return Err(wrong("its length differs from that of the copy"));
        }
        let file = open(&self.path)?;
        for (number, range) in chunks_of(self.length).enumerate() {
            if stored.is_abandoned() {
                return Ok(false);
            }
            let Some(mut bytes) = stored.slot.claim(range) else {
                return Err(wrong("another thread is writing to its memory"));
            };
            self.read_chunk(&file, number as u64, &mut bytes)?;
            bytes.commit();
            stored.grew();
        }
        Ok(true)
    }

    /// Reads a chunk into `bytes`, and verifies its checksum.
    fn read_chunk(&self, file: &File, number: u64, bytes: &mut [u8]) -> io::Result<()> {
        let sum =
            self.sums.get(number as usize).ok_or_else(|| wrong("it ends before this chunk"))?;
        let start = number * CHUNK_BYTES;
        file.read_exact_at(bytes, self.at + start)?;
        if crc(bytes) == *sum {
            return Ok(());
        }
        let end = start + bytes.len() as u64;
        Err(wrong(&format!("checksum mismatch in bytes {start} to {end}")))
    }

    /// Reads a chunk, replacing the contents of `bytes`.
    fn chunk(&self, file: &File, number: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
        let left = self.length.saturating_sub(number * CHUNK_BYTES);
        bytes.resize(left.min(CHUNK_BYTES) as usize, 0);
        self.read_chunk(file, number, bytes)
    }
}

/// A file that is read sequentially.
#[derive(Debug)]
pub(crate) struct SpillReader {
    written: Arc<SpillFile>,
    file: File,
    /// The last chunk read, and its number.
    bytes: Vec<u8>,
    number: Option<u64>,
}

impl SpillReader {
    /// # Errors
    /// The error of the operating system.
    pub(crate) fn open(written: Arc<SpillFile>) -> io::Result<Self> {
        let file = open(&written.path)?;
        Ok(Self { written, file, bytes: Vec::new(), number: None })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.written.path
    }

    /// The bytes from `at` up to `end` that were already read; None if they must be read first.
    pub(crate) fn there(&self, at: u64, end: u64) -> Option<&[u8]> {
        let start = self.number.filter(|number| at / CHUNK_BYTES == *number)? * CHUNK_BYTES;
        let end = (end - start).min(self.bytes.len() as u64);
        self.bytes.get((at - start) as usize..end as usize).filter(|bytes| !bytes.is_empty())
    }

    /// Reads the chunk that contains a byte.
    ///
    /// # Errors
    /// The error of the operating system, and [`ErrorKind::InvalidData`] for corrupt bytes.
    pub(crate) fn read(&mut self, at: u64) -> io::Result<()> {
        let number = at / CHUNK_BYTES;
        self.number = None;
        self.written.chunk(&self.file, number, &mut self.bytes)?;
        self.number = Some(number);
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    // A hint to the kernel to read further ahead.
    let _ = rustix::fs::fadvise(&file, 0, None, Advice::Sequential);
    Ok(file)
}

/// Subtracts the time since the write from a lifetime.
fn passed(told: Lifetime, written_ns: u64) -> Lifetime {
    let passed = now_ns().saturating_sub(written_ns);
    Lifetime { remaining_ns: told.remaining_ns.map(|left| left.saturating_sub(passed)), ..told }
}

fn wrong(said: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, said)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use hoplite_proto::id::NodeId;

    use super::*;
    use crate::store::Store;

    const INSTANCE: Instance = Instance { node: NodeId(7), serial: 3 };
    const LENGTH: u64 = 2 * CHUNK_BYTES + 100_000;

    /// A folder for one test.
    struct Scene(PathBuf);

    impl Scene {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("hoplite-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn file(&self) -> PathBuf {
            self.0.join("file")
        }

        /// Writes an object with these bytes.
        fn write(&self, bytes: &[u8], lifetime: Option<Lifetime>) -> SpillFile {
            let copy = SpilledCopy {
                id: "group/name".parse().unwrap(),
                instance: INSTANCE,
                meta: Meta::bytes(bytes.len() as u64),
                lifetime: lifetime.map(Box::new),
                inline: None,
            };
            let source = Source::Bytes(bytes);
            write(&self.file(), &copy, source, &mut Vec::new(), || false).unwrap().unwrap()
        }

        /// Flips one byte.
        fn spoil(&self, at: u64) {
            let file = OpenOptions::new().read(true).write(true).open(self.file()).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[!byte[0]], at).unwrap();
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn bytes() -> Vec<u8> {
        (0..LENGTH).map(|at| ((at * 2_654_435_761) >> 13) as u8).collect()
    }

    fn memory(store: &Store) -> Arc<StoredCopy> {
        store.create(INSTANCE, LENGTH, None, || {}).unwrap();
        store.get(INSTANCE).unwrap()
    }

    #[test]
    fn written_copy_is_read_back_even_by_next_node() {
        let (scene, bytes) = (Scene::new("file-back"), bytes());
        let then_ns = 1_000_000_000_000;
        let lifetime = Lifetime { remaining_ns: Some(then_ns), ttl_ns: None, job: None };
        let written = scene.write(&bytes, Some(lifetime));
        let (found, copy) = SpillFile::open(&scene.file()).unwrap();
        assert_eq!((copy.instance, copy.meta.size), (INSTANCE, LENGTH));
        assert_eq!((copy.id.to_string().as_str(), copy.inline), ("group/name", None));
        let left = copy.lifetime.unwrap().remaining_ns.unwrap();
        assert!(left < then_ns && left > 900_000_000_000, "time has passed: {left}");
        for file in [written, found] {
            let store = Store::new(1 << 30);
            let stored = memory(&store);
            assert!(file.read_into(&stored).unwrap());
            assert!(stored.slot.bytes().unwrap().to_vec() == bytes);
        }
    }

    #[test]
    fn small_object_is_read_back_with_metadata() {
        let scene = Scene::new("file-small");
        scene.write(b"few", None);
        let (_, copy) = SpillFile::open(&scene.file()).unwrap();
        assert_eq!(copy.inline.unwrap().as_bytes(), b"few");
    }

    #[test]
    fn changed_byte_is_detected_and_earlier_chunks_stay() {
        let (scene, bytes) = (Scene::new("file-changed"), bytes());
        let written = Arc::new(scene.write(&bytes, None));
        scene.spoil(written.at + CHUNK_BYTES + 5);
        let store = Store::new(1 << 30);
        let stored = memory(&store);
        let error = written.read_into(&stored).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(error.to_string().contains("bytes 1048576 to 2097152"), "{error}");
        assert_eq!(stored.slot.progress().prefix(), CHUNK_BYTES);
        let mut reading = SpillReader::open(written).unwrap();
        reading.read(100).unwrap();
        assert!(reading.there(100, 300).unwrap() == &bytes[100..300]);
        assert!(reading.there(CHUNK_BYTES, 300 + CHUNK_BYTES).is_none());
        assert!(reading.read(CHUNK_BYTES).is_err() && reading.there(100, 300).is_none());
    }

    /// Method: each byte except those of the object, and each length.
    #[test]
    fn incomplete_file_is_rejected() {
        let scene = Scene::new("file-half");
        let written = scene.write(b"some bytes", None);
        let length = std::fs::metadata(scene.file()).unwrap().len();
        let head = (BEGIN_BYTES + 20) as u64;
        for at in (0..head).chain(written.at..length) {
            scene.spoil(at);
            assert!(SpillFile::open(&scene.file()).is_err(), "byte {at}");
            scene.spoil(at);
            assert!(SpillFile::open(&scene.file()).is_ok());
        }
        let file = OpenOptions::new().write(true).open(scene.file()).unwrap();
        for shorter in (0..length).rev().step_by(97) {
            file.set_len(shorter).unwrap();
            assert!(SpillFile::open(&scene.file()).is_err(), "{shorter} bytes");
        }
    }

    #[test]
    fn cancelled_write_leaves_no_file() {
        let scene = Scene::new("file-void");
        let (bytes, meta) = (bytes(), Meta::bytes(LENGTH));
        let (id, lifetime, inline) = ("name".parse().unwrap(), None, None);
        let copy = SpilledCopy { id, instance: INSTANCE, meta, lifetime, inline };
        let written = write(&scene.file(), &copy, Source::Bytes(&bytes), &mut Vec::new(), || true);
        assert!(written.unwrap().is_none() && !scene.file().exists());
        let short = Source::Bytes(&bytes[..100]);
        let written = write(&scene.file(), &copy, short, &mut Vec::new(), || false);
        assert!(written.is_err() && !scene.file().exists());
    }
}
