//! Checks that a name can be put again, by any node, as soon as its deletion is confirmed.
//!
//! Nothing fails and no node joins or leaves, but messages to different nodes take different times: a node may receive
//! the next object before it receives the end of the last one. No verb may fail, and no get may return an object whose
//! deletion was confirmed before. There is one exception: clients of one node share a search, which may have found a
//! small object, or its deletion, before the last of them joined it.

use std::{cell::Cell, rc::Rc};

use hoplite_proto::{
    error::Error,
    id::{Name, NodeId, ObjectId},
    meta::{Dtype, Meta},
    mutants,
    node::Config,
    reduce::cost::Link,
    time::Instant,
};

use crate::{
    dice::Dice,
    payload::{SMALL_BYTES, Tag},
    plan::{DETECTION_NS, MILLISECOND, Plan, SECOND, name},
    programs::Client,
    trace::Trace,
    verdict::{Mutation, Record},
    world::World,
};

/// How often each name is put.
const TURNS: u64 = 12;

/// All turns end long before.
const END: Instant = Instant(120 * SECOND);

/// Simulates clients that put, get and delete the same names in turn.
///
/// # Errors
/// A verb that failed, a wrong object, or a program that did not end.
pub fn put_names_again(
    seed: u64,
    record: Record,
    sabotage: Option<Mutation>,
) -> Result<(), String> {
    let mut dice = Dice::new(seed);
    let latency_ns = dice.pick(&[80_000, 1_000_000]).unwrap_or(1);
    let link = Link { latency_ns, bytes_per_second: 37_500_000 };
    let config = Config { detection_ns: Some(DETECTION_NS), ..Config::new(1 << 40, link) };
    let plan = Plan::empty(dice.between(2, 6), config, END);
    let mut world = World::begin(seed, plan, Trace::of(record), sabotage);
    world.add_acquainted_hosts();
    mutants::activate(sabotage.and_then(Mutation::node_mutant));
    let left = Rc::new(Cell::new(0));
    for number in 0..dice.between(1, 4) {
        let bytes = dice.pick(&[SMALL_BYTES, 128 << 10]).unwrap_or(8);
        let Some(meta) = Meta::array(Dtype::Int64, vec![bytes / 8]) else { continue };
        let name = name(&format!("again{number}/x"));
        let id = ObjectId::Named(name.clone());
        let all = || (1..=world.plan.nodes).map(NodeId);
        let clients = all().map(|node| world.programs.client(node, number * 100 + node.0));
        let ended = Rc::default();
        let readers = dice.below(3);
        let has_readers = readers > 0;
        let (clients, left) = (clients.collect(), left.clone());
        left.set(left.get() + 1);
        let cycle = Cycle { name, id, meta, clients, has_readers, ended, left };
        for _ in 0..readers {
            world.programs.add(cycle.clone().read(Dice::new(dice.below(1 << 40))));
        }
        world.programs.add(cycle.take_turns(Dice::new(dice.below(1 << 40))));
    }
    world.run_programs();
    world.run_until(END);
    if left.get() > 0 {
        world.fail(format!("{} programs have not ended", left.get()));
    }
    world.check_entries();
    mutants::activate(None);
    world.failure.map_or(Ok(()), Err)
}

/// One name, with a client at each node.
#[derive(Clone, Debug)]
struct Cycle {
    name: Name,
    id: ObjectId,
    meta: Meta,
    clients: Vec<Client>,
    /// Whether others get it at any time.
    has_readers: bool,
    /// How many objects of this name were deleted.
    ended: Rc<Cell<u64>>,
    /// Programs that have not ended.
    left: Rc<Cell<u64>>,
}

impl Cycle {
    async fn take_turns(self, mut dice: Dice) {
        // Membership may count as unsettled.
        self.one(&mut dice).sleep(dice.below(2 * SECOND)).await;
        for turn in 0..TURNS {
            if let Err(error) = self.take_turn(&mut dice, turn).await {
                self.clients[0].fail(format!("turn {turn} of {}: {error}", self.id));
            }
        }
        self.left.set(self.left.get() - 1);
    }

    async fn take_turn(&self, dice: &mut Dice, turn: u64) -> Result<(), Error> {
        if dice.chance(20) {
            // No object has the name.
            self.one(dice).delete(vec![self.id.clone()]).await?;
        }
        let summing = self.one(dice).clone();
        let sum = match dice.chance(30) {
            true => Some(summing.sum(vec![self.id.clone()], 1, None).await?),
            false => None,
        };
        self.make(self.one(dice), dice.below(4), Tag(turn + 1)).await?;
        if let Some(sum) = sum {
            let reading = summing.get(&sum).await?;
            if reading.tags() != [Tag(turn + 1)] {
                summing.fail(format!("a sum of turn {turn} holds {:?}", reading.tags()));
            }
            summing.release(&reading);
            summing.delete(vec![sum]).await?;
        }
        if dice.chance(20) {
            self.one(dice).wait(self.id.clone()).await?;
        }
        for _ in 0..dice.below(3) {
            match self.check(self.one(dice), turn).await {
                Err(Error::ObjectDeleted { .. }) if self.has_readers => {}
                other => other?,
            }
        }
        self.one(dice).delete(vec![self.id.clone()]).await?;
        self.ended.set(turn + 1);
        Ok(())
    }

    /// Puts the object, after a reservation or without one, or makes it the result of a reduce.
    async fn make(&self, client: &Client, how: u64, tag: Tag) -> Result<(), Error> {
        let (id, meta) = (Some(self.id.clone()), self.meta.clone());
        if how == 0 {
            let input = client.put(None, meta, tag).await?;
            client.sum(vec![input.clone()], 1, id.clone()).await?;
            let result = client.get(&self.id).await?;
            client.release(&result);
            return client.delete(vec![input]).await;
        }
        if how == 1 {
            client.reserve(self.name.clone()).await?;
        }
        client.put(id, meta, tag).await.map(drop)
    }

    /// Gets the name again and again, and may find an object that is deleted meanwhile.
    async fn read(self, mut dice: Dice) {
        loop {
            let client = self.one(&mut dice);
            match self.check(client, self.ended.get()).await {
                Ok(()) | Err(Error::ObjectDeleted { .. }) => {}
                Err(error) => client.fail(format!("a reader of {}: {error}", self.id)),
            }
            client.sleep(dice.below(5 * MILLISECOND)).await;
        }
    }

    /// Gets the object of this turn, or of a later one.
    async fn check(&self, client: &Client, turn: u64) -> Result<(), Error> {
        let reading = client.get(&self.id).await?;
        let may_be_old = self.has_readers && self.meta.size <= SMALL_BYTES;
        match reading.tags() {
            [Tag(tag)] if *tag > turn || may_be_old => {}
            other => client.fail(format!("{} of turn {turn} holds {other:?}", self.id)),
        }
        client.release(&reading);
        Ok(())
    }

    fn one(&self, dice: &mut Dice) -> &Client {
        &self.clients[dice.below(self.clients.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deleted_name_is_free_at_once() {
        for seed in 0..crate::TESTED {
            if let Err(failure) = put_names_again(seed, Record::Nothing, None) {
                panic!("seed {seed}: {failure}");
            }
        }
    }
}
