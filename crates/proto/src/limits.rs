//! Every limit and default, with its unit, its reason, and what happens beyond it.

/// The name of a limit, as the node's status reports it when the limit rejects something.
macro_rules! limit_name {
    ($limit:ident) => {{
        let _ = $crate::limits::$limit;
        stringify!($limit)
    }};
}
pub(crate) use limit_name;

/// Bytes of a block, the unit of progress. Every payload frame consists of whole blocks.
///
/// 16 KiB takes 0.13 ms at 1 Gbit/s, less than the latency of a hop; see
/// [`crate::pipeline::frame_bytes`].
pub const BLOCK_BYTES: u64 = 16 * 1024;

/// Maximum size of a payload frame in bytes. A receiver verifies, and a position folds, one frame
/// at a time.
///
/// A larger frame would leave the second-level cache of a core before it is sent on.
pub const FRAME_BYTES_MAX: u64 = 256 * 1024;

/// Objects up to this size in bytes travel inside control messages and are stored in the directory.
///
/// This is half of the papers' threshold. The owner sends such an object to each reader over its
/// own link, which delays the control messages behind it. If that delay is longer than a hop,
/// relays deliver sooner (decision 16).
pub const INLINE_BYTES_MAX: u64 = 32 * 1024;

/// Limit of the owner-side inline cache, as a divisor of the capacity: a quarter.
///
/// The cache stores the bytes of other members' small objects, in addition to the capacity. With a
/// capacity of 30 % of 8 GiB it is 600 MB, or 18 000 objects of the maximum inline size. For
/// objects beyond the limit the owner stores only the entry, and requests the bytes from a holder
/// for each reader, which costs one more round trip.
pub const INLINE_SHARE: u64 = 4;

/// Share of one member in an owner's storage for all members, as a divisor: half. A member that
/// puts without bound leaves as much to the others.
pub const SHARE_OF_ONE: u64 = 2;

/// Maximum number of directory entries for objects of other members and for names that their
/// reduces reserve: four million. One member may have half of them.
///
/// Each takes half a kilobyte. Beyond the limit the owner rejects names with an error. It also
/// stores no entry for a generated id, which the generating node itself records.
pub const ENTRIES_MAX: u64 = 1 << 22;

/// Maximum size in bytes of the messages queued for one member: 256 MiB.
///
/// A node sends as much about two million objects to a member that joins. If a member reads too
/// slowly, or is unreachable for too long, its connection is replaced and the nodes re-announce
/// their state.
pub const OUTBOX_BYTES_MAX: usize = 256 << 20;

/// Maximum number of axes of an array. NumPy allows 64; the limit bounds the memory that a frame
/// can make a node allocate.
pub const AXES_MAX: usize = 64;

/// Maximum size of a name in bytes.
pub const NAME_BYTES_MAX: usize = 1024;

/// Maximum size in bytes of a control message on the wire: enough for an inline object and the
/// largest order of a reduce.
pub const CONTROL_BYTES_MAX: u32 = 8 * 1024 * 1024;

/// Maximum size of an object, 1 TiB. A larger size comes from a broken peer or a wrong shape.
pub const OBJECT_BYTES_MAX: u64 = 1 << 40;

/// Maximum credit in bytes that a receiver grants a source. 4 MiB covers 10 Gbit/s x 3 ms; more
/// would only fill the source's kernel buffers.
pub const CREDIT_BYTES: u64 = 4 * 1024 * 1024;

/// Initial and minimum credit in bytes, before the receiver has measured the rate. 512 KiB is two
/// frames of maximum size. It covers 1 Gbit/s x 4 ms, and takes 84 ms at 50 Mbit/s.
pub const FIRST_CREDIT_BYTES: u64 = 512 * 1024;

/// Bytes of partial results that a position buffers between its children and its parent. They take
/// 17 ms at 1 Gbit/s, longer than a process waits for its time slice on a busy host.
pub const WINDOW_BYTES: u64 = 2 * 1024 * 1024;

/// Bytes of frames being sent or folded at which streams shrink their buffers: 64 MiB, the need of
/// a dozen active folds. Above it each stream buffers one frame instead of several.
pub const FRAMES_BYTES: u64 = 64 * 1024 * 1024;

/// Maximum number of inputs of one reduce.
pub const REDUCE_INPUTS_MAX: usize = 65_536;

/// Maximum number of inputs of complete results that a node remembers: four million, 100 MiB
/// without the texts of their names. Beyond it those of the oldest results are forgotten.
pub const FOLDED_INPUTS_MAX: usize = 1 << 22;

/// Maximum number of slots of one request.
pub const SLOTS_MAX: usize = 65_536;

/// Maximum number of objects of one wait. Each needs a message and an entry at its owner.
pub const WAIT_OBJECTS_MAX: usize = 65_536;

/// Maximum number of objects on one page of a listing. With the longest names and the most axes, a
/// page is a quarter of a control message.
pub const LISTED_MAX: usize = 1024;

/// Maximum number of objects that an owner scans for one page of a listing. It takes a few
/// milliseconds, during which the owner handles nothing else.
pub const LOOKED_AT_MAX: usize = 16_384;

/// Maximum size in bytes of a member's report about itself: half a control message.
pub const REPORT_BYTES_MAX: usize = CONTROL_BYTES_MAX as usize / 2;

/// Maximum size in bytes of a message of a survey: a part of a burst, and what describes it.
pub const SURVEY_BYTES_MAX: u64 = 65 * 1024;

/// Lifetime of a tombstone, which keeps a late message from restoring a deleted object: 10 minutes.
pub const TOMBSTONE_NS: u64 = 600 * 1_000_000_000;

/// Maximum number of tombstones at an owner. Beyond it the oldest are dropped early, except
/// deletions that a holder has not confirmed. Each takes half a kilobyte, 4 MiB in all.
pub const REMEMBERED_MAX: usize = 8192;

/// How long an owner waits for holders to announce an object whose minter is gone, before it
/// declares the object lost: 0.75 s.
pub const ORPHAN_GRACE_NS: u64 = 750_000_000;

/// Upper bound of that wait while nodes that declared each other dead merge again: 5 s. An
/// owner that has known no holder waits as long for one to announce itself.
///
/// After a partition, a cluster of eight on a busy machine took up to 4.3 s until all nodes had
/// re-announced everything.
pub const MERGE_NS: u64 = 5 * 1_000_000_000;

/// How long an owner keeps announcements of objects that other nodes own by its own membership
/// view: at least 10 s.
///
/// The sender has detected the failure of a member that this node still counts, and does not repeat
/// the announcement. Members that are partitioned for longer than the detection time declare each
/// other dead, and re-announce everything later.
pub const STRAY_NS: u64 = 10 * 1_000_000_000;

/// Time in which a transfer of a copy must move [`PROGRESS_BYTES_MIN`], otherwise it ends: 30 s.
///
/// This is ten times the detection time of a failed host, so it concerns members that are alive but
/// make no progress. Received blocks stay, and the rest is requested again.
pub const PROGRESS_WINDOW_NS: u64 = 30 * 1_000_000_000;

/// Time for the first bytes of a reply on a payload connection that was idle. A firewall or load
/// balancer may have forgotten it: without a reply, the request is sent once more, on a new
/// connection.
pub const IDLE_REPLY_TIMEOUT_NS: u64 = 1_000_000_000;

/// A sender that can't reply at once reports after this time that it waits, well within
/// [`IDLE_REPLY_TIMEOUT_NS`].
pub const FIRST_WAIT_NS: u64 = IDLE_REPLY_TIMEOUT_NS / 5;

/// Payload connections that were idle for longer are not used again. Firewalls, load balancers and
/// address translators keep an idle connection for at least a minute, most of them for five or
/// more.
pub const IDLE_CONNECTION_MAX_NS: u64 = 30 * 1_000_000_000;

/// Bytes that a transfer must move within [`PROGRESS_WINDOW_NS`]: 8.7 KB/s.
///
/// A host with a hundredth of 1 Gbit/s serves 140 transfers at that rate.
pub const PROGRESS_BYTES_MIN: u64 = FRAME_BYTES_MAX;

/// Number of corrupt blocks from one source after which it is avoided.
pub const CORRUPT_BLOCKS_MAX: u32 = 3;

/// Time in which an owner must acknowledge a request before the backup owner gets it: 1 s.
///
/// A broken connection reveals a dead owner, and [`crate::machines::reply_timeouts`] an
/// unresponsive one. This timeout is for an owner that sends other messages. On a busy machine with
/// two cores, 200 ms expired often. A backup owner does not know which sources the primary owner
/// assigned, and sends all requesters to the original source.
pub const OWNER_TIMEOUT_NS: u64 = 1_000_000_000;

/// Time after which a request that waits is reported, once.
pub const LONG_WAIT_NS: u64 = 30_000_000_000;

/// Maximum size in bytes of a member's reason for declaring another member dead. A node's own
/// reasons have at most a hundred bytes.
pub const REASON_BYTES_MAX: usize = 256;

/// Maximum number of members. A node ignores messages that list more. Simulated with 1024; every
/// two members have a connection.
pub const MEMBERS_MAX: usize = 4096;

/// Maximum number of members known from others that have not connected yet, and thus of connection
/// attempts at a time. A node that joins a cluster of a thousand connects to all of them. In a
/// larger cluster the members it has met send it the rest.
pub const UNMET_MAX: usize = 1024;

/// Maximum number of former members that a node remembers, with their last incarnation, to reject
/// outdated reports about them: as many as a cluster has members. An outdated report about a
/// forgotten one is believed until that node fails to ack a probe.
pub const DEPARTED_MAX: usize = 4096;

/// Maximum number of indirect probes that a node runs for others at a time. A requester beyond the
/// limit gets no ack and suspects the member. The suspected member receives the suspicion and
/// refutes it.
pub const INDIRECT_PROBES_MAX: usize = 4096;

/// Maximum size in bytes of each text in the error that a tombstone stores. Nodes that wait during
/// the deletion get the full text, later requesters the shortened one. [`REMEMBERED_MAX`] accounts
/// for it.
pub const REMEMBERED_WORDS_BYTES: usize = 256;

/// Maximum number of deleted instances of one name that an owner remembers, so that none of them
/// returns. Beyond it the oldest is forgotten. A name that is put and deleted every half second for
/// ten minutes has as many.
pub const BURIED_MAX: usize = 1024;

/// Maximum number of requests that wait for the last holder of one object to confirm its deletion.
/// A later request gets its reply at once.
pub const DELETERS_MAX: usize = 1024;

/// Maximum number of claims of names that an owner parks because it may have missed what happened
/// to the names. A later claim is decided with the owner's present state.
pub const PARKED_MAX: usize = 16_384;

/// Maximum number of open requests for newer names of a node's clients, and thus of one member at
/// an owner. Each client has one for each prefix that it follows. Attached programs may have half
/// of them (`crates/node/src/local/limits.rs`).
pub const LATEST_MAX: usize = 16_384;

/// Maximum number of pinned copies on their way to a node at the request of others. More are
/// rejected as if there were no capacity. A leaving node requests adoption of all its objects at
/// once, and loses those that no other node takes. Each takes half a kilobyte.
pub const INCOMING_REPLICAS_MAX: usize = 1 << 20;

/// How long objects outlive the last client of their job, or the last holder of a lease: 5 s.
///
/// In that time a client can restart, or hand a ref to another client. A member that was
/// partitioned can re-announce the leases of its clients.
pub const LEASE_GRACE_NS: u64 = 5 * 1_000_000_000;

/// Maximum number of leases at an owner, of jobs and of objects together. It ignores leases beyond
/// the limit; their objects live until they are deleted. Each takes a quarter of a kilobyte.
pub const LEASES_MAX: usize = 1 << 20;

/// Maximum number of lost objects that a leaving node names to its user.
pub const LOST_NAMED_MAX: usize = 20;

/// Maximum number of connections that one member may have open to a node for payload, or to be
/// forwarded to other members: 4096.
///
/// A copy and a stream of a reduce take one each. Four coordinators with [`FOLDS_MAX`] folds each
/// need that many streams from one node to another. Only a few dozen copies come from one source at
/// a time ([`crate::limiter`]). If the process may open few descriptors, each member may have half
/// of them.
pub const PAYLOAD_CONNECTIONS_MAX: usize = 4096;

/// Maximum number of folds of one coordinator at a node at a time; more fail. Each takes a task
/// and, until its parent fetches it, a window of [`WINDOW_BYTES`].
pub const FOLDS_MAX: usize = 1024;
