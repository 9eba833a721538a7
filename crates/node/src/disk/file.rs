//! The file of a spilled object: its metadata, its bytes, and checksums with which each read
//! detects corruption.
//!
//! ```text
//! 0          magic, version, length and checksum of the head; the head
//! a page     the bytes
//! then       the CRC-32C of each MiB of them; magic, how many there are, and the CRC-32C of those
//! ```
//! All numbers are little-endian. A file without the trailer is incomplete and unusable. Knows the
//! folder only by the given path.

use std::{
    fs::{File, OpenOptions},
    io::{self, ErrorKind},
    ops::Range,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
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
use hoplite_shm::{Ready, file_size_limit};
use rustix::fs::{Advice, FallocateFlags};
use serde::{Deserialize, Serialize};

use crate::{
    backing::{self, Backing, CHUNK_BYTES, Claim},
    frame::crc,
    store::StoredCopy,
    sync::lock,
};

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

/// Whether a disk that failed to write a copy would not take another copy either.
pub(super) fn is_disk_failing(error: &io::Error) -> bool {
    match error.kind() {
        // The limit is of a file.
        ErrorKind::FileTooLarge => false,
        ErrorKind::WriteZero => true,
        // Without a number of the operating system it is of the copy, such as missing bytes.
        _ => error.raw_os_error().is_some(),
    }
}

/// A file that was written completely.
#[derive(Clone, Debug)]
pub(crate) struct SpillFile {
    path: PathBuf,
    /// Offset and number of the object's bytes.
    at: u64,
    length: u64,
    sums: Vec<u32>,
}

/// Writes a copy to a new file and syncs it; `stored` is its memory, unless it is small. None if
/// `goes_on` returned false meanwhile, because the file is no longer needed. An incomplete file is
/// removed.
///
/// The bytes are copied before they are written: a client may have the memory mapped writable, and
/// a file whose checksum covers other bytes would be lost.
///
/// # Errors
/// The error of the operating system.
pub(super) fn write(
    path: &Path,
    copy: &SpilledCopy,
    stored: Option<&StoredCopy>,
    goes_on: impl Fn() -> bool,
) -> io::Result<Option<SpillFile>> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let fill = || {
        let file = OpenFile::begin(file, path, copy)?;
        let is_whole = match (&copy.inline, stored) {
            (Some(bytes), _) => file.write(0, bytes.as_bytes()).map(|()| true),
            (None, Some(stored)) => backing::copy(stored, &file, goes_on),
            (None, None) if copy.meta.size == 0 => Ok(true),
            (None, None) => Err(ErrorKind::UnexpectedEof.into()),
        };
        if is_whole? { file.finish().map(Some) } else { Ok(None) }
    };
    let written = fill();
    if !matches!(written, Ok(Some(_))) {
        let _ = std::fs::remove_file(path);
    }
    written
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

impl SpillFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file that an earlier node left, and reads its header.
    ///
    /// # Errors
    /// The error of the operating system, and [`ErrorKind::InvalidData`] if it is not a complete
    /// spill file.
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
                let mut bytes = vec![0; length as usize];
                OpenFile::new(file, this.clone()).read(0, &mut bytes)?;
                Some(Inline::from(bytes))
            }
            _ => None,
        };
        let lifetime = lifetime.map(|told| Box::new(passed(told, written_ns)));
        Ok((this, SpilledCopy { id, instance, meta, lifetime, inline }))
    }

    /// Opens the file to read its bytes.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(crate) fn bytes(&self) -> io::Result<OpenFile> {
        Ok(OpenFile::new(open(&self.path)?, self.clone()))
    }
}

/// The bytes of a spill file that is read, or of one that is written in order. Each MiB has a
/// checksum.
#[derive(Debug)]
pub(crate) struct OpenFile {
    file: File,
    path: PathBuf,
    /// Offset and number of the object's bytes.
    at: u64,
    length: u64,
    chunks: Mutex<Chunks>,
}

/// The chunks of an open file that are ready.
#[derive(Debug)]
struct Chunks {
    sums: Vec<u32>,
    /// The bytes of the next one, while it is written.
    next: Vec<u8>,
}

/// The next chunk of a file.
#[derive(Debug)]
pub(crate) struct FileClaim<'a> {
    file: &'a OpenFile,
    chunks: MutexGuard<'a, Chunks>,
    range: Range<u64>,
}

impl OpenFile {
    fn new(file: File, SpillFile { path, at, length, sums }: SpillFile) -> Self {
        Self { file, path, at, length, chunks: Mutex::new(Chunks { sums, next: Vec::new() }) }
    }

    /// Writes the header of a new file, and reserves the space for the rest.
    fn begin(file: File, path: &Path, copy: &SpilledCopy) -> io::Result<Self> {
        let (begin, length) = (begin_of(copy), copy.meta.size);
        let at = (begin.len() as u64).next_multiple_of(PAGE_BYTES);
        let chunks = length.div_ceil(CHUNK_BYTES);
        let file_bytes = at + length + 4 * chunks + END_BYTES;
        // Writing beyond the limit would kill a process that does not ignore SIGXFSZ.
        if file_bytes > file_size_limit() {
            return Err(rustix::io::Errno::FBIG.into());
        }
        // A full disk fails here, before anything is written.
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, file_bytes) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
        file.write_all_at(&begin, 0)?;
        let sums = Vec::with_capacity(chunks as usize);
        Ok(Self::new(file, SpillFile { path: path.into(), at, length, sums }))
    }

    /// Writes the checksums after the last chunk, and syncs the file.
    fn finish(self) -> io::Result<SpillFile> {
        let Self { file, path, at, length, chunks } = self;
        let Chunks { sums, .. } = chunks.into_inner().unwrap_or_else(PoisonError::into_inner);
        let table: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        let mut rest = table.clone();
        rest.extend_from_slice(&END_MAGIC);
        rest.extend_from_slice(&(sums.len() as u32).to_le_bytes());
        rest.extend_from_slice(&crc(&table).to_le_bytes());
        file.write_all_at(&rest, at + length)?;
        // A failing disk reports its error while the copy is still in memory.
        file.sync_data()?;
        Ok(SpillFile { path, at, length, sums })
    }

    /// The range of the chunk that contains a byte.
    fn chunk_at(&self, at: u64) -> Range<u64> {
        let start = at - at % CHUNK_BYTES;
        start..(start + CHUNK_BYTES).min(self.length)
    }
}

impl Backing for OpenFile {
    type Claim<'a> = FileClaim<'a>;

    fn len(&self) -> u64 {
        self.length
    }

    fn is_ready(&self, range: Range<u64>) -> bool {
        let ready = lock(&self.chunks).sums.len() as u64 * CHUNK_BYTES;
        range.start <= range.end && range.end <= ready.min(self.length)
    }

    /// Claims the next chunk.
    fn claim(&self, range: Range<u64>) -> Option<FileClaim<'_>> {
        let mut chunks = lock(&self.chunks);
        let next = chunks.sums.len() as u64 * CHUNK_BYTES;
        if next >= self.length || range != self.chunk_at(next) {
            return None;
        }
        chunks.next.resize((range.end - range.start) as usize, 0);
        Some(FileClaim { file: self, chunks, range })
    }

    fn view(&self, _: Range<u64>) -> Option<Ready<'_>> {
        None
    }

    /// Reads a whole chunk, and verifies its checksum.
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let range = at..at + into.len() as u64;
        let sum = lock(&self.chunks).sums.get((at / CHUNK_BYTES) as usize).copied();
        let Some(sum) = sum.filter(|_| range == self.chunk_at(at)) else {
            return Err(wrong("it has no such chunk"));
        };
        self.file.read_exact_at(into, self.at + at)?;
        if crc(into) == sum {
            return Ok(());
        }
        Err(wrong(&format!("checksum mismatch in bytes {} to {}", range.start, range.end)))
    }
}

impl Claim for FileClaim<'_> {
    fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    fn place(&mut self, most: u64) -> &mut [u8] {
        let end = (self.range.end - self.range.start).min(most);
        &mut self.chunks.next[..end as usize]
    }

    /// Writes the chunk, if all of it is given.
    fn commit(&mut self, bytes: u64) -> io::Result<()> {
        let Self { file, chunks, range } = self;
        if bytes >= range.end - range.start {
            let sum = crc(&chunks.next);
            file.file.write_all_at(&chunks.next, file.at + range.start)?;
            chunks.sums.push(sum);
            range.start = range.end;
        }
        Ok(())
    }
}

/// A file that is read sequentially.
#[derive(Debug)]
pub(crate) struct SpillReader {
    file: OpenFile,
    /// The last chunk read, and where it starts.
    bytes: Vec<u8>,
    start: Option<u64>,
}

impl SpillReader {
    /// # Errors
    /// The error of the operating system.
    pub(crate) fn open(written: &SpillFile) -> io::Result<Self> {
        Ok(Self { file: written.bytes()?, bytes: Vec::new(), start: None })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.file.path
    }

    /// The bytes from `at` up to `end` that were already read; None if they must be read first.
    pub(crate) fn there(&self, at: u64, end: u64) -> Option<&[u8]> {
        let start = self.start.filter(|start| at - at % CHUNK_BYTES == *start)?;
        let end = (end - start).min(self.bytes.len() as u64);
        self.bytes.get((at - start) as usize..end as usize).filter(|bytes| !bytes.is_empty())
    }

    /// Reads the chunk that contains a byte.
    ///
    /// # Errors
    /// The error of the operating system, and [`ErrorKind::InvalidData`] for corrupt bytes.
    pub(crate) fn read(&mut self, at: u64) -> io::Result<()> {
        let range = self.file.chunk_at(at);
        self.start = None;
        self.bytes.resize(range.end.saturating_sub(range.start) as usize, 0);
        self.file.read(range.start, &mut self.bytes)?;
        self.start = Some(range.start);
        Ok(())
    }
}

/// Opens a file for sequential reading.
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
mod tests;
