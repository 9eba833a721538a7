//! Simulates the disks of hosts. A file holds one copy, is written as a whole and read block by block. Speeds vary, and
//! operations fail at random.

use hoplite_proto::{
    id::{Instance, NodeId},
    node::{Event, SpilledCopy},
    table::{Copy, Residency, file_bytes},
};

use crate::{
    dice::Dice,
    payload::Piece,
    plan::{Disk, MICROSECOND, Plan},
    shell::{File, Slot, SlotId},
    world::{SimEvent, World},
};

impl Plan {
    /// Adds disks to some of the clusters whose nodes cannot hold everything in memory.
    pub(crate) fn add_disks(&mut self, dice: &mut Dice) {
        if self.config.capacity >= 1 << 33 || !dice.chance(60) {
            return;
        }
        self.disk = Some(Disk {
            limit: self.config.capacity * dice.between(2, 40) / 10,
            failures: if dice.chance(30) { dice.between(1, 30) } else { 0 },
            block_ns: dice.pick(&[5, 200, 5000]).unwrap_or(5) * MICROSECOND,
            persistent: dice.chance(50),
        });
    }
}

impl World {
    pub(crate) fn spill(&mut self, node: NodeId, kept: SpilledCopy) {
        let (instance, number) = (kept.instance, self.next_number());
        let Some(host) = self.hosts.get(&node) else { return };
        let Some(disk) = self.plan.disk else {
            return self.fail(format!("{node:?} spills {instance} without a disk"));
        };
        let memory = host.slots.get(&instance).copied();
        let is_here = memory.is_some_and(|slot| self.shell.slots[slot].is_full());
        if host.files.contains_key(&instance) || !is_here && kept.inline.is_none() {
            return self.fail(format!("{node:?} spills {instance} twice, or incompletely"));
        }
        let taken: u64 = host.files.values().map(|file| file_bytes(file.kept.meta.size)).sum();
        if taken + file_bytes(kept.meta.size) > disk.limit {
            return self
                .fail(format!("{node:?} spills {instance} beyond the limit {}", disk.limit));
        }
        let blocks = memory.map(|slot| self.shell.slots[slot].copied());
        let slot = self.shell.slots.len();
        self.shell.slots.push(blocks.unwrap_or_else(|| Slot::empty(node, instance)));
        let time_ns = u64::from(self.shell.slots[slot].end()) * disk.block_ns;
        let delay_ns = time_ns + self.dice.below(50 * MICROSECOND);
        let file = File { kept, slot, number, is_written: false };
        if let Some(host) = self.hosts.get_mut(&node) {
            host.files.insert(instance, file);
        }
        self.after(delay_ns, SimEvent::FileWritten { node, instance, number });
    }

    pub(crate) fn file_written(&mut self, node: NodeId, instance: Instance, number: u64) {
        let is_failing = self.fails();
        let Some(host) = self.hosts.get_mut(&node) else { return };
        let file = host.files.get_mut(&instance).filter(|file| file.number == number);
        let Some(file) = file else { return };
        let event = if is_failing {
            host.files.remove(&instance);
            let is_disk_failing = self.dice.chance(50);
            Event::SpillFailed { instance, detail: "injected failure".into(), is_disk_failing }
        } else {
            file.is_written = true;
            Event::Spilled { instance }
        };
        self.deliver(node, event);
    }

    fn fails(&mut self) -> bool {
        let failures = self.plan.disk.map_or(0, |disk| disk.failures);
        failures > 0 && self.dice.chance(failures)
    }

    pub(crate) fn unspill(&mut self, node: NodeId, instance: Instance) {
        let Some(host) = self.hosts.get(&node) else { return };
        let (Some(slot), Some(_)) = (host.slots.get(&instance), self.file_of(node, instance))
        else {
            return self.fail(format!("{node:?} reads {instance} without a file or a slot"));
        };
        let slot = *slot;
        self.read_next(node, slot, 0);
    }

    /// Whether reads from disk may fail, so that an original can be lost without a node failure.
    pub(crate) fn may_lose_files(&self) -> bool {
        self.plan.disk.is_some_and(|disk| disk.failures > 0)
    }

    /// Returns the blocks of a copy that is completely on disk.
    pub(crate) fn file_of(&self, node: NodeId, instance: Instance) -> Option<SlotId> {
        let file = self.hosts.get(&node)?.files.get(&instance)?;
        file.is_written.then_some(file.slot)
    }

    fn read_next(&mut self, node: NodeId, slot: SlotId, index: u32) {
        let block_ns = self.plan.disk.map_or(0, |disk| disk.block_ns);
        self.after(block_ns, SimEvent::BlockRead { node, slot, index });
    }

    pub(crate) fn block_read(&mut self, node: NodeId, slot: SlotId, index: u32) {
        let Slot { instance, is_freed, .. } = self.shell.slots[slot];
        if is_freed || !self.is_up(node) {
            return;
        }
        let Some(file) = self.file_of(node, instance) else {
            return self.fail(format!("{node:?} removes {instance} while reading it back"));
        };
        if index == 0 && self.fails() {
            // Perhaps no other node has a copy.
            self.users.is_shrunk = true;
            let detail = "injected failure".into();
            return self.deliver(node, Event::UnspillFailed { instance, detail });
        }
        if let Some(content) = self.shell.slots[file].block(index).cloned() {
            self.write_slot(slot, Piece { index, content });
        }
        if index + 1 < self.shell.slots[slot].end() {
            return self.read_next(node, slot, index + 1);
        }
        self.shell.slots[slot].is_complete = true;
        self.deliver(node, Event::Unspilled { instance });
    }

    pub(crate) fn drop_spilled(&mut self, node: NodeId, instance: Instance) {
        let Some(host) = self.hosts.get_mut(&node) else { return };
        let is_leaving = host.is_leaving;
        let is_in_memory = host.node.table().get(instance).is_some_and(Copy::is_readable);
        let Some(file) = host.files.remove(&instance) else {
            return self.fail(format!("{node:?} removes a missing file of {instance}"));
        };
        let folds = &self.shell.slots[file.slot].folds;
        if !folds.is_empty() && !is_leaving && !is_in_memory {
            let said = format!("{node:?} removes {instance} while the folds {folds:?} read it");
            self.fail(said);
        }
        // Folds that have opened the file continue to read it.
    }

    /// Stops a host: complete files stay on its disk, incomplete ones are lost.
    pub(crate) fn stop_disk(&mut self, node: NodeId) {
        let Some(host) = self.hosts.get_mut(&node) else { return };
        host.files.retain(|_, file| file.is_written);
    }

    /// Starts a node with the files of its predecessor at the same address.
    pub(crate) fn begin_with_files(&mut self, node: NodeId, before: NodeId) {
        if !self.plan.disk.is_some_and(|disk| disk.persistent) {
            return;
        }
        let Some(host) = self.hosts.get_mut(&before) else { return };
        let files = std::mem::take(&mut host.files);
        let all: Vec<SpilledCopy> = files.values().map(|file| file.kept.clone()).collect();
        if let Some(host) = self.hosts.get_mut(&node) {
            host.files = files;
        }
        if !all.is_empty() {
            self.deliver(node, Event::CopiesRecovered { all });
        }
    }

    /// Checks that a node's state agrees with its disk, after each event.
    pub(crate) fn check_disk(&self, node: NodeId) -> Option<String> {
        let host = self.hosts.get(&node).filter(|host| host.is_up)?;
        self.plan.disk?;
        for (instance, copy) in host.node.table().iter() {
            let has_slot = host.slots.contains_key(&instance);
            let is_wrong = match copy.residency {
                Residency::Disk => self.file_of(node, instance).is_none() || has_slot,
                Residency::Restoring(_) => self.file_of(node, instance).is_none(),
                Residency::Pending => false,
                Residency::Memory => copy.is_complete() && copy.inline.is_none() && !has_slot,
            };
            if is_wrong && !copy.doomed {
                return Some(format!(
                    "{node:?} records {instance} as {:?}, which is not the case",
                    copy.residency
                ));
            }
        }
        None
    }
}
