//! Messages of the hostile member and requests of clients, read from a string of bytes. They use few objects, instances
//! and requests, so that they often refer to existing ones. Does not depend on a node.

use std::collections::BTreeSet;

use hoplite_proto::{
    broadcast::Reason,
    error::Error,
    id::{Instance, Name, NodeId, ObjectId, QuestionId, ReduceId},
    inline::Inline,
    inspection::Inspection,
    lifetime::Lease,
    limits::{BLOCK_BYTES, INLINE_BYTES_MAX},
    members::Member,
    message::{
        Announce, FoldKey, FoldOrder, Found, Holding, Listed, Located, Message, Progress,
        RateReport, ReceiveRate, RingOrder, Source,
    },
    meta::{Digest, Dtype, Meta, Op},
    question::{Answer, Locate, LocateRange, Question},
    rate::Rate,
    request::Request,
    selection::Selection,
    swim::SwimMessage,
};

pub(crate) const ME: NodeId = NodeId(1);
pub(crate) const HOSTILE: NodeId = NodeId(2);
pub(crate) const SILENT: NodeId = NodeId(3);

/// Digests that the shell of this test counts as correct and as a mismatch.
pub(crate) const RIGHT: Digest = Digest([0; 32]);
pub(crate) const WRONG: Digest = Digest([1; 32]);

/// Choices, read from bytes. Once the bytes are used up, all are zero.
pub(crate) struct Choices<'a> {
    pub(crate) bytes: &'a [u8],
    /// Objects that node 1 has announced, to be named again.
    pub(crate) told: Vec<(ObjectId, Instance, Meta)>,
    /// Reduces that node 1 has ordered, and their epochs.
    pub(crate) reduces: Vec<(ReduceId, u32)>,
}

impl Choices<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        *first
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        u64::from(self.byte()) % end
    }

    fn place(&mut self, length: usize) -> usize {
        usize::from(self.byte()) % length
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[usize::from(self.byte()) % all.len()].clone()
    }

    /// A counter: mostly small, sometimes the largest value.
    fn number(&mut self) -> u64 {
        match self.byte() {
            255 => u64::MAX,
            254 => u64::MAX - 1,
            byte => u64::from(byte % 8),
        }
    }

    fn few(&mut self) -> u32 {
        u32::try_from(self.number()).unwrap_or(u32::MAX)
    }

    fn node(&mut self) -> NodeId {
        self.of(&[ME, HOSTILE, SILENT, NodeId(4)])
    }

    pub(crate) fn instance(&mut self) -> Instance {
        if !self.told.is_empty() && self.flag() {
            let at = self.place(self.told.len());
            return self.told[at].1;
        }
        Instance { node: self.node(), serial: self.number() }
    }

    fn name(&mut self) -> Name {
        self.of(&["a/1", "a/2", "b/1", "c"]).parse().unwrap()
    }

    pub(crate) fn id(&mut self) -> ObjectId {
        if !self.told.is_empty() && self.flag() {
            let at = self.place(self.told.len());
            return self.told[at].0.clone();
        }
        if self.flag() {
            ObjectId::Named(self.name())
        } else {
            ObjectId::Minted { node: self.node(), serial: self.number() }
        }
    }

    fn meta(&mut self) -> Meta {
        let meta = match self.below(6) {
            0 => Meta::bytes(self.number()),
            1 => Meta::array(Dtype::Float32, vec![2]).unwrap(),
            2 => Meta::array(Dtype::Float32, vec![4]).unwrap(),
            3 => Meta::array(Dtype::Int64, vec![2]).unwrap(),
            4 => Meta::array(Dtype::Float32, vec![INLINE_BYTES_MAX]).unwrap(),
            _ => Meta::bytes(INLINE_BYTES_MAX + 1),
        };
        match self.below(4) {
            0 => meta.with_digest(RIGHT),
            1 => meta.with_digest(WRONG),
            _ => meta,
        }
    }

    /// Bytes, usually as many as in the metadata.
    fn inline(&mut self, meta: &Meta) -> Inline {
        let length = if self.below(8) == 0 { self.number() } else { meta.size };
        bytes(length.min(2 * INLINE_BYTES_MAX))
    }

    fn error(&mut self) -> Error {
        let id = self.id();
        let lost = Error::ObjectLost { id: id.clone(), detail: "gone".into() };
        self.of(&[Error::ObjectDeleted { id }, lost])
    }

    fn reduce(&mut self) -> ReduceId {
        if !self.reduces.is_empty() && self.flag() {
            let at = self.place(self.reduces.len());
            return self.reduces[at].0;
        }
        ReduceId { node: self.node(), serial: self.number() }
    }

    fn op(&mut self) -> Op {
        self.of(&[Op::Sum, Op::Min, Op::Mean, Op::Any])
    }

    fn progress(&mut self, meta: &Meta) -> Progress {
        match self.below(6) {
            0 => Progress::Complete,
            1 => Progress::Partial { source: self.flag().then(|| self.node()) },
            2 => Progress::Parts,
            3 => Progress::Stored(self.flag().then(|| self.inline(meta))),
            _ => Progress::Inline(self.inline(meta)),
        }
    }

    fn source(&mut self, meta: &Meta) -> Source {
        if self.flag() {
            Source::Inline(self.inline(meta))
        } else {
            Source::Holder { node: self.node(), reason: Reason::OnlyHolder }
        }
    }

    fn many<T>(&mut self, one: impl Fn(&mut Self) -> T) -> Vec<T> {
        (0..self.below(4)).map(|_| one(self)).collect()
    }

    fn fold_order(&mut self) -> FoldOrder {
        let position = if self.flag() { FoldKey::RESULT } else { self.few() };
        let key = FoldKey { reduce: self.reduce(), epoch: self.few(), segment: 0, position };
        let size = self.of(&[8, 16, 4 * INLINE_BYTES_MAX]);
        FoldOrder {
            key,
            result: self.id(),
            inputs: self.many(Self::instance),
            children: self.many(|choices| (choices.node(), choices.few())),
            op: self.op(),
            dtype: Dtype::Float32,
            size,
            part: 0..size,
            frame: u32::try_from(BLOCK_BYTES).unwrap(),
        }
    }

    fn scatter_order(&mut self) -> RingOrder {
        RingOrder {
            reduce: self.reduce(),
            epoch: self.few(),
            id: self.id(),
            instance: self.instance(),
            meta: self.meta(),
            op: self.op(),
            frame: u32::try_from(BLOCK_BYTES).unwrap(),
            contributors: self.many(|choices| (choices.node(), choices.many(Self::instance))),
        }
    }

    fn rumour(&mut self) -> SwimMessage {
        let (node, sequence, incarnation) = (self.node(), self.number(), self.few());
        self.of(&[
            SwimMessage::Ping { sequence },
            SwimMessage::Ack { sequence },
            SwimMessage::PingReq { node, sequence },
            SwimMessage::Suspect { node, incarnation },
            SwimMessage::Alive { node, incarnation },
        ])
    }

    /// A request of a client.
    pub(crate) fn ask(&mut self) -> Request {
        let meta = self.meta();
        let id = self.flag().then(|| ObjectId::Named(self.name()));
        match self.below(14) {
            0 | 1 if meta.size <= INLINE_BYTES_MAX => {
                Request::Put { id, bytes: bytes(meta.size), meta, ttl_ns: None }
            }
            0..=2 => Request::Create { id, meta, ttl_ns: None },
            3 => Request::Reserve { name: None },
            4 => Request::Seal { instance: self.instance() },
            5 => Request::Abort { instance: self.instance() },
            6 => Request::Get { id: self.id() },
            7 => {
                let mut bound = || self.flag().then(|| self.number().cast_signed());
                let selection = Selection { start: bound(), stop: bound() };
                Request::GetRange { id: self.id(), selection }
            }
            8 => Request::Delete { ids: vec![self.id()] },
            9 => Request::Replicate { id: self.id(), replicas: 1 + self.few() % 3 },
            10 => Request::Wait { ids: vec![self.id()], count: 1 },
            11 => Request::Latest { prefix: "a/".into(), after: None },
            12 => Request::Locations { id: self.id(), known: None },
            _ => {
                let inputs: BTreeSet<_> = (0..3).map(|_| self.id()).collect();
                let inputs: Vec<_> = inputs.into_iter().collect();
                let count = 1 + self.few() % u32::try_from(inputs.len()).unwrap();
                Request::Reduce { inputs, op: self.op(), count, id, ttl_ns: None }
            }
        }
    }

    /// An existing object, or one that differs from it in one property or in all.
    fn object(&mut self) -> (ObjectId, Instance, Meta) {
        let (mut id, mut instance, mut meta) = (self.id(), self.instance(), self.meta());
        if !self.told.is_empty() && self.flag() {
            let at = self.place(self.told.len());
            let told = self.told[at].clone();
            match self.below(5) {
                0 => (instance, meta) = (told.1, told.2),
                1 => (id, meta) = (told.0, told.2),
                2 | 3 => (id, instance) = (told.0, told.1),
                _ => (id, instance, meta) = told,
            }
        }
        // The bytes of a generated id come from the node that generated it.
        if let Some(minter) = id.minter().filter(|_| self.below(16) > 0) {
            instance.node = minter;
        }
        (id, instance, meta)
    }

    /// A message of the hostile member.
    pub(crate) fn message(&mut self) -> Message {
        let (id, instance, meta) = self.object();
        match self.below(34) {
            0 => Message::Members(self.many(|choices| member(choices.node()))),
            1 => self.of(&[
                Message::Leaving,
                Message::Drained,
                Message::StateDropped,
                Message::MarkSlow { times: u64::MAX, bytes_per_second: 0 },
                Message::Down {
                    node: id.minter().unwrap_or(ME),
                    incarnation: u32::MAX,
                    reason: "".into(),
                },
            ]),
            2..=4 => Message::Swim(self.rumour()),
            5..=9 => {
                let (pinned, claim, progress) = (self.flag(), self.flag(), self.progress(&meta));
                let lifetime = None;
                let announce = Announce { id, instance, meta, pinned, progress, claim, lifetime };
                match claim && self.flag() {
                    true => Message::ClaimAtBackup(announce),
                    false => Message::Announce(announce),
                }
            }
            10 => {
                let not_here = self.flag().then(|| (self.node(), instance));
                let usual = self.flag().then(|| self.number());
                let receives = ReceiveRate { slowness: self.number(), usual };
                let avoid = self.many(Self::node);
                let seen_at = self.flag().then(|| self.node());
                let locate = Locate { id, avoid, not_here, receives, seen_at };
                self.question(Question::Locate(Box::new(locate)))
            }
            11 => Message::RateReport(RateReport {
                id,
                instance,
                source: self.node(),
                rate: Rate { bytes_per_second: self.number(), shares: self.number() as u16 },
                missing: self.number(),
                usual: self.flag().then(|| self.number()),
            }),
            12..=14 => {
                let source = self.source(&meta);
                let located = Located { id, instance, meta, source, lifetime: None };
                self.answer(Answer::Located(Box::new(located)))
            }
            15 => Message::Redirect { id, instance, source: self.node() },
            16..=18 => {
                let inline = self.flag().then(|| self.inline(&meta));
                let (holder, complete) = (self.node(), self.flag());
                let found = Found { instance, meta, holder, inline, complete };
                self.answer(Answer::Found(Box::new(found)))
            }
            19 => {
                let known = self.flag().then(Vec::new);
                self.question(Question::Locations { id, known })
            }
            20 => {
                let holding = Holding { node: self.node(), complete: self.flag() };
                self.answer(Answer::Locations(vec![holding]))
            }
            21..=23 => self.word_of_an_object(id, instance),
            24 => self.word_of_names(),
            25 => {
                let row = Listed {
                    id: id.clone(),
                    meta,
                    complete: 1,
                    partial: 0,
                    age_ns: 0,
                    lifetime: None,
                };
                self.answer(Answer::List { rows: vec![row], next: Some(id) })
            }
            26 | 27 => Message::Fold(self.fold_order()),
            28 => Message::RingReduce(Box::new(self.scatter_order())),
            29 => {
                let (mut reduce, mut epoch) = (self.reduce(), self.few());
                if !self.reduces.is_empty() && self.flag() {
                    let at = self.place(self.reduces.len());
                    (reduce, epoch) = self.reduces[at];
                }
                let is_aborted = self.flag();
                self.of(&[
                    Message::EndEpoch { reduce, epoch, is_aborted },
                    Message::FoldProbe { reduce, epoch },
                    Message::FoldProbeAck { reduce, epoch },
                    Message::FoldFailed { reduce, epoch, detail: "why".into(), is_lost: true },
                ])
            }
            30..=32 => {
                let inline = self.flag().then(|| self.inline(&meta));
                Message::StoreReplica {
                    id,
                    instance,
                    meta,
                    inline,
                    lifetime: None,
                    may_wait: self.flag(),
                }
            }
            _ => Message::ReplicaReply { id, instance, accepted: self.flag() },
        }
    }

    fn word_of_an_object(&mut self, id: ObjectId, instance: Instance) -> Message {
        let error = self.error();
        match self.below(25) {
            0 => Message::Claimed { id, instance, taken_by: self.flag().then(|| self.node()) },
            1 => Message::Withdraw { id, instance },
            2 | 3 => Message::Decline { id },
            4 => self.answer(Answer::NoSource),
            5 => {
                let seen_at = self.flag().then(|| self.node());
                self.question(Question::Watch { id, seen_at })
            }
            6 => Message::Cancel { number: self.question_id() },
            7 => Message::Reserve { id, instance },
            8 => self.question(Question::Delete { id, pruned: false }),
            9 => {
                let answer = Answer::Gone(error);
                self.answer(answer)
            }
            10 => Message::Drop { id, instance, error: self.flag().then_some(error) },
            11 => Message::DropPartial { id, instance, error },
            12 => Message::Reannounce { id, instance },
            13 => Message::Dropped { id, instance },
            14 => Message::ReleaseReplica { id, instance },
            15 => Message::Fail { id, error, reserved: None },
            16 => Message::Abandon { id, instance },
            17 => Message::LeaseUpdate { lease: Lease::Object(id), is_held: self.flag() },
            18 => Message::JobObjects { job: self.name(), has_objects: self.flag() },
            19 => Message::JobEnded { job: self.name() },
            20 => Message::Survey(bytes(self.below(40))),
            21 => {
                let (bytes, avoid) = (self.number(), self.many(Self::node));
                let not_here = self.flag().then(|| (self.node(), self.number()));
                let locate = LocateRange { id, instance, bytes, avoid, not_here };
                self.question(Question::LocateRange(Box::new(locate)))
            }
            22 => {
                let source = self.flag().then(|| self.node());
                self.answer(Answer::RangeLocated(source))
            }
            23 => Message::ReserveAtBackup { id, instance },
            _ => Message::Tombstone { id, instances: vec![instance], error: None, pruned: false },
        }
    }

    fn word_of_names(&mut self) -> Message {
        let name = self.name();
        match self.below(10) {
            0 => self.question(Question::Latest { prefix: "a/".parse().unwrap(), after: None }),
            1 => Message::Cancel { number: self.question_id() },
            2 => self.answer(Answer::Pending),
            3 => self.answer(Answer::Latest(name)),
            4 => self.answer(Answer::OlderVersions(vec![name])),
            5 => {
                let retain = self.number();
                self.question(Question::OlderVersions { name, retain })
            }
            6 => self.question(Question::Inspect(Inspection::Metrics)),
            7 => self.answer(Answer::Report("{}".into())),
            8 => self.answer(Answer::Deleted),
            _ => self.question(Question::List { prefix: String::new(), after: None }),
        }
    }

    /// Few numbers, so that answers and cancellations often meet a question.
    fn question_id(&mut self) -> QuestionId {
        QuestionId(1 + self.below(64))
    }

    fn question(&mut self, question: Question) -> Message {
        Message::Ask { number: self.question_id(), question }
    }

    fn answer(&mut self, answer: Answer) -> Message {
        Message::Answer { number: self.question_id(), answer }
    }
}

pub(crate) fn bytes(length: u64) -> Inline {
    vec![1; usize::try_from(length).unwrap()].into()
}

pub(crate) fn member(id: NodeId) -> Member {
    let port = u16::try_from(id.0).unwrap();
    Member { id, address: ([127, 0, 0, 1], port).into(), place: None }
}
