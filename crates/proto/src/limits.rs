//! Every limit and default: its unit, why that number, what breaks beyond it.

/// The name of a limit, as the status of a node has it where the limit turned something away.
macro_rules! limit_name {
    ($limit:ident) => {{
        let _ = $crate::limits::$limit;
        stringify!($limit)
    }};
}
pub(crate) use limit_name;

/// Bytes of a block: the unit of progress, of which every frame of payload has a whole number.
///
/// 16 KiB takes 0.13 ms at 1 Gbit/s, less than a hop of a chain takes anyway; see [`crate::pipeline::frame_bytes`].
pub const BLOCK_BYTES: u64 = 16 * 1024;

/// Bytes of the longest frame of payload: what a receiver checks, and a position folds, in one go.
///
/// More leaves the second-level cache of a core before it is passed on.
pub const FRAME_BYTES_MAX: u64 = 256 * 1024;

/// Objects up to this many bytes travel inside control messages and live in the directory.
///
/// Half of the papers' threshold. All of them go out of their owner's link one by one, and delay the control messages
/// behind them: of more than a hop's time, relays are sooner (decision 16).
pub const INLINE_BYTES_MAX: u64 = 32 * 1024;

/// Of a node's capacity, what the small objects of other members may take beside it, whose bytes live at their owners: a
/// quarter. Where the capacity is 30 % of 8 GiB that is 600 MB, or 18 000 of the largest. Of what comes beyond it the owner
/// keeps the entry, and asks a holder for the bytes whenever they are wanted: one round trip more.
pub const SMALL_SHARE: u64 = 4;

/// Of what an owner keeps for all members, what one may take: half. One that puts ever more leaves as much to all others.
pub const SHARE_OF_ONE: u64 = 2;

/// Entries that an owner keeps of objects that other members told it of, and of names that it keeps for their reduces, half of
/// them for one member: four million, each of which takes half a kilobyte. Beyond them it refuses names, with an error; of an
/// object with an id of its own the node that made it knows by itself.
pub const ENTRIES_MAX: u64 = 1 << 22;

/// Bytes of messages that wait for a member, 256 MiB: what a node says of two million objects to one that it meets. Of a member
/// that takes too little, or can't be reached for so long, the connection is made anew, and what matters is said again.
pub const OUTBOX_BYTES_MAX: usize = 256 << 20;

/// Axes of an array. NumPy allows 64; a frame must not make us allocate more.
pub const AXES_MAX: usize = 64;

/// Bytes of a name.
pub const NAME_BYTES_MAX: usize = 1024;

/// Bytes of one control message on the wire: an inline object, and room for the largest order of a reduce.
pub const CONTROL_BYTES_MAX: u32 = 8 * 1024 * 1024;

/// Bytes of the largest object, 1 TiB: beyond it a size is a broken peer or a wrong shape, not data.
pub const OBJECT_BYTES_MAX: u64 = 1 << 40;

/// Bytes that a receiver lets a sender have under way at most. 4 MiB covers 10 Gbit/s x 3 ms; more only fills the sender's
/// kernel buffers.
pub const CREDIT_BYTES: u64 = 4 * 1024 * 1024;

/// Bytes that it grants before it knows how fast they come, and always grants. 512 KiB cover 1 Gbit/s x 4 ms, and take 84 ms at
/// 50 Mbit/s; two of the longest frames.
pub const FIRST_CREDIT_BYTES: u64 = 512 * 1024;

/// Bytes of partial results that a position keeps between its children and its parent: 17 ms at 1 Gbit/s, longer than a
/// busy host lets a process wait for its turn.
pub const WINDOW_BYTES: u64 = 2 * 1024 * 1024;

/// Bytes of frames that are being sent, or are on their way through folds, 64 MiB: what a dozen folds at work use. While there are
/// more, each stream keeps one frame where it keeps several else.
pub const FRAMES_BYTES: u64 = 64 * 1024 * 1024;

/// Inputs of one reduce.
pub const REDUCE_INPUTS_MAX: usize = 65_536;

/// Objects that one wait may listen to: each is a message and an entry at its owner.
pub const WAIT_OBJECTS_MAX: usize = 65_536;

/// Objects that one page of a listing names: with the longest names and most axes they fit a control message four times.
pub const LISTED_MAX: usize = 1024;

/// Objects that an owner looks at for one page of a listing: a few milliseconds, in which it does nothing else.
pub const LOOKED_AT_MAX: usize = 16_384;

/// How long a deletion is remembered, so that a late message does not bring the object back: 10 minutes.
pub const TOMBSTONE_NS: u64 = 600 * 1_000_000_000;

/// Deletions that an owner remembers; of more the oldest are forgotten sooner, but for those that some holder has not
/// carried out. Each takes half a kilobyte: 4 MiB in all.
pub const REMEMBERED_MAX: usize = 8192;

/// How long an owner waits for holders to tell it of an object whose minter is gone, before it is lost: 0.75 s.
pub const ORPHAN_GRACE_NS: u64 = 750_000_000;

/// How long that is at most while nodes that had given each other up meet again: 5 s.
///
/// Longer than a cluster of eight that was cut in two took on a busy machine until all had told each other everything: up
/// to 4.3 s.
pub const MERGE_NS: u64 = 5 * 1_000_000_000;

/// How long an owner keeps what is told to it though others own it, as it sees the members: 10 s at least.
///
/// Who tells it knows of the end of a member that this node has not heard of yet, and does not tell it again. Members
/// that hear nothing of each other for longer than detection give each other up, and then tell everything again.
pub const STRAY_NS: u64 = 10 * 1_000_000_000;

/// How long a transfer of a copy may take to move [`TURN_BYTES`], before it ends: 30 s.
///
/// Ten times what a silent host takes to be missed, so that this is for members that live and do not do their part. What
/// has come stays, and the rest is asked for again.
pub const TURN_NS: u64 = 30 * 1_000_000_000;

/// Bytes that a transfer moves within [`TURN_NS`] at least: 8.7 KB/s.
///
/// A host that is a hundred times slower than 1 Gbit/s gives that to 140 transfers at once.
pub const TURN_BYTES: u64 = FRAME_BYTES_MAX;

/// Blocks from one sender that differ from their checksums, after which it is avoided.
pub const CORRUPT_BLOCKS_MAX: u32 = 3;

/// How long an owner may take to acknowledge a question before the second is asked: 1 s.
///
/// An owner that is dead is noticed by its connection; this is for one that is silent. On a busy machine of two cores
/// 200 ms passed often, and a second owner that does not know which senders the first has assigned sends all askers to the source.
pub const OWNER_PATIENCE_NS: u64 = 1_000_000_000;

/// Bytes of the words with which a member says why it counts another as dead. The longest that a node says has a hundred.
pub const REASON_BYTES_MAX: usize = 256;

/// Members of a cluster: a node believes no member that tells of more. Simulated with 1024; every two have a connection.
pub const MEMBERS_MAX: usize = 4096;

/// Members of which others have told and from which nothing has come yet: so many calls are open at once. A node that joins
/// a cluster of a thousand calls all of them; in a larger one it is told of the rest by those that it meets.
pub const UNMET_MAX: usize = 1024;

/// Nodes that went, of which a node remembers that what others tell of them is old, and what they last said of themselves;
/// as many as a cluster has members. Of one that is forgotten old news would be believed until it does not answer.
pub const DEPARTED_MAX: usize = 4096;

/// Members that a node asks on behalf of others whether they live, at a time. Who asks for more has no answer, and suspects
/// the member; it is told, and answers itself.
pub const ERRANDS_MAX: usize = 4096;

/// Bytes of each text in the reason that an owner remembers why an object is gone: the rest is told to those who wait then,
/// and not to those who ask later. With it a tombstone takes what [`REMEMBERED_MAX`] counts with.
pub const REMEMBERED_WORDS_BYTES: usize = 256;

/// Instances under one name that an owner remembers as gone, so that none of them comes back; of more the one that went first
/// is forgotten. A name that is put and deleted each half second for ten minutes has as many.
pub const BURIED_MAX: usize = 1024;

/// Questions for the end of a deletion that wait for the last holder of an object; a later one is answered at once.
pub const DELETERS_MAX: usize = 1024;

/// Claims of names that an owner lets wait because it may have missed what became of them; a later one is answered by what
/// the owner knows.
pub const PARKED_MAX: usize = 16_384;

/// Questions of one member for newer names that an owner keeps. Each client has one open for each prefix that it follows; to
/// find one is to look at all.
pub const LATEST_MAX: usize = 16_384;

/// Originals that are on their way to a node because others want them kept there: more are refused, as without room. A node
/// that leaves asks for all it has at once, and loses what no other takes; each takes half a kilobyte.
pub const ADOPTIONS_MAX: usize = 1 << 20;

/// How long objects outlive the last client of their job, or the last that has taken a lease of them: 5 s.
///
/// A client that restarts, or hands a ref to another one, is back by then; so is a member that was cut off and tells again
/// which leases its clients have taken.
pub const LEASE_GRACE_NS: u64 = 5 * 1_000_000_000;

/// Leases of which an owner keeps who has taken them, jobs and objects together; of more it hears nothing, and what they are
/// of lives until it is deleted. Each takes a quarter of a kilobyte.
pub const LEASES_MAX: usize = 1 << 20;

/// Names of lost objects that a node which leaves tells its user.
pub const LOST_NAMED_MAX: usize = 20;

/// Payload connections, and connections by way of this node to others, that one member may have open to it: 4096. A copy and a
/// stream of a reduce take one each. Four coordinators with [`FOLDS_MAX`] folds each take that many streams from one node to
/// another, and of copies a few dozen come from one sender at a time ([`crate::limiter`]). A node that may open few
/// descriptors lets each member have half of them.
pub const PAYLOAD_CONNECTIONS_MAX: usize = 4096;

/// Folds that one coordinator may have at a node at a time; more fail. Each takes a task and, until its parent fetches it, a
/// window of [`WINDOW_BYTES`].
pub const FOLDS_MAX: usize = 1024;
