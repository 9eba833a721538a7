//! Tests of spill files on a real file system.

use std::sync::Arc;

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
        let stored = memory(bytes.len() as u64);
        stored.write(0, bytes).unwrap();
        write(&self.file(), &copy, Some(&stored), || true).unwrap().unwrap()
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

fn memory(length: u64) -> Arc<StoredCopy> {
    let store = Store::new(1 << 30);
    store.create(INSTANCE, length, None, || {}).unwrap();
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
        let stored = memory(LENGTH);
        assert!(backing::copy(&file.bytes().unwrap(), &*stored, || true).unwrap());
        assert!(stored.shared().bytes().unwrap().to_vec() == bytes);
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
    let written = scene.write(&bytes, None);
    scene.spoil(written.at + CHUNK_BYTES + 5);
    let stored = memory(LENGTH);
    let error = backing::copy(&written.bytes().unwrap(), &*stored, || true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    assert!(error.to_string().contains("bytes 1048576 to 2097152"), "{error}");
    assert_eq!(stored.shared().progress().prefix(), CHUNK_BYTES);
    let mut reading = SpillReader::open(&written).unwrap();
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
    let (stored, meta) = (memory(LENGTH), Meta::bytes(LENGTH));
    let (id, lifetime, inline) = ("name".parse().unwrap(), None, None);
    let copy = SpilledCopy { id, instance: INSTANCE, meta, lifetime, inline };
    stored.write(0, &bytes()[..CHUNK_BYTES as usize]).unwrap();
    let written = write(&scene.file(), &copy, Some(&stored), || false);
    assert!(written.unwrap().is_none() && !scene.file().exists());
    let error = write(&scene.file(), &copy, Some(&stored), || true).unwrap_err();
    assert!(!is_disk_failing(&error) && !scene.file().exists());
    for kind in [ErrorKind::InvalidData, ErrorKind::ResourceBusy, ErrorKind::UnexpectedEof] {
        assert!(!is_disk_failing(&io::Error::new(kind, "of the copy")));
    }
    assert!(is_disk_failing(&rustix::io::Errno::IO.into()));
    assert!(is_disk_failing(&rustix::io::Errno::NOSPC.into()));
    assert!(!is_disk_failing(&rustix::io::Errno::FBIG.into()));
}
