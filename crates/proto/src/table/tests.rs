use alloc::string::ToString;

use proptest::prelude::*;

use super::*;
use crate::{id::NodeId, limits::LISTED_MAX};

fn instance(serial: u64) -> Instance {
    Instance { node: NodeId(1), serial }
}

fn id(serial: u64) -> ObjectId {
    ObjectId::Minted { node: NodeId(1), serial }
}

fn table_with_three_copies() -> Table {
    let mut table = Table::new(4 * (1000 + COPY_OVERHEAD_BYTES));
    for serial in 0..3 {
        let pinned = serial == 0;
        let meta = Meta::bytes(1000);
        table.insert(instance(serial), id(serial), meta, None, State::Complete, pinned);
        table.reveal(instance(serial));
    }
    table
}

#[test]
fn the_least_recently_used_copy_goes_first_and_an_original_never() {
    let mut table = table_with_three_copies();
    table.add_reader(instance(1));
    table.remove_reader(instance(1));
    let evicted = table.make_room(2000).unwrap().evicted;
    assert_eq!(evicted.len(), 1);
    assert_eq!(evicted[0].instance, instance(2));
    assert!(table.make_room(4000).is_none(), "the original stays");
    assert!(table.get(instance(1)).is_some(), "nothing is evicted when it would not be enough");
}

#[test]
fn a_copied_object_is_evicted_first() {
    let mut table = table_with_three_copies();
    table.insert(instance(3), id(3), Meta::bytes(1000), None, State::Complete, false);
    let copied = |table: &mut Table, serial| {
        table.pass_over(instance(serial));
        table.remove_reader(instance(serial));
    };
    // Another client reads the second too, and the last is read again.
    [2, 2, 3, 1].iter().for_each(|serial| table.add_reader(instance(*serial)));
    [2, 3, 1].iter().for_each(|serial| copied(&mut table, *serial));
    table.remove_reader(instance(2));
    table.add_reader(instance(3));
    table.remove_reader(instance(3));
    let gone: Vec<_> =
        (0..3).flat_map(|_| table.shed(1).evicted).map(|gone| gone.instance).collect();
    assert_eq!(gone, [1, 2, 3].map(instance));
}

#[test]
fn eviction_stops_at_pinned_copies() {
    let mut table = table_with_three_copies();
    let shed = [1, u64::MAX, 1].map(|bytes| table.shed(bytes).evicted.len());
    assert_eq!(shed, [1, 1, 0], "the original stays");
}

#[test]
fn the_largest_pinned_copies_are_named_with_their_reason() {
    let mut table = Table::new(1 << 30);
    assert_eq!(table.largest_held(), "none of its copies is pinned");
    for serial in 1..6 {
        let meta = Meta::bytes(1000 * serial);
        table.insert(instance(serial), id(serial), meta, None, State::Complete, serial % 2 == 1);
    }
    table.add_reader(instance(4));
    table.set_state(instance(3), State::Folding);
    let named = [
        format!("{} of 5000 bytes (pinned until it is deleted)", id(5)),
        format!("{} of 4000 bytes (readers: 1)", id(4)),
        format!("{} of 3000 bytes (being reduced)", id(3)),
    ];
    assert_eq!(table.largest_held(), format!("the largest are {}", named.join(", ")));
}

#[test]
fn a_pinned_copy_outlives_its_deletion_until_the_last_reader_is_gone() {
    let mut table = table_with_three_copies();
    table.add_reader(instance(0));
    table.add_reader(instance(0));
    assert_eq!(table.doom(instance(0)), None);
    assert_eq!(table.current(&id(0)), None, "no new reader finds it");
    assert_eq!(table.remove_reader(instance(0)), None);
    assert_eq!(table.remove_reader(instance(0)).map(|removed| removed.instance), Some(instance(0)));
}

#[test]
fn the_eviction_index_matches_a_scan_of_all_copies() {
    let capacity = 64 * (1000 + COPY_OVERHEAD_BYTES);
    let mut table = Table::new(capacity);
    // The linear congruential generator of Knuth's MMIX.
    let mut state = 1_u64;
    let mut dice = |sides: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % sides
    };
    for serial in 1000..3000 {
        let which = instance(dice(32));
        match dice(8) {
            0 | 1 => {
                let size = dice(4000);
                if table.make_room(size).is_some() {
                    let (state, pinned) = (State::Folding, dice(3) == 0);
                    let (id, meta) = (id(serial), Meta::bytes(size));
                    if table.get(which).is_none() {
                        table.insert(which, id, meta, None, state, pinned);
                    }
                }
            }
            2 => {
                table.set_residency(which, Residency::Memory);
                table.set_state(which, State::Complete);
            }
            3 => drop(table.set_pinned(which, dice(2) == 0)),
            4 => table.add_reader(which),
            5 => {
                table.add_reader(which);
                table.pass_over(which);
            }
            6 if table.get(which).is_some_and(|copy| copy.readers > 0) => {
                table.remove_reader(which);
            }
            7 if dice(4) == 0 => drop(table.doom(which)),
            _ => {}
        }
        let may_go = |copy: &&Copy| copy.is_complete() && !copy.pinned && copy.readers == 0;
        let (mut bytes, mut first) = (0, None);
        for (instance, copy) in table.iter().filter(|(_, copy)| may_go(copy)) {
            bytes += copy.cost();
            first = first.min(Some((copy.last_use, instance))).or(Some((copy.last_use, instance)));
        }
        let used: u64 = table.iter().map(|(_, copy)| copy.cost()).sum();
        assert_eq!((table.used(), table.pinned()), (used, used - bytes));
        let held: u64 = table.evictable.held.iter().map(|(cost, _)| cost).sum();
        assert_eq!(held, table.pinned());
        assert_eq!(table.evictable.least_recently_used(), first.map(|(_, instance)| instance));
        let free = capacity - used + bytes - COPY_OVERHEAD_BYTES;
        assert_eq!((table.missing_for(free), table.missing_for(free + 1)), (0, 1));
    }
}

#[test]
fn accounting_returns_to_zero() {
    let mut table = table_with_three_copies();
    (0..3).for_each(|serial| assert!(table.doom(instance(serial)).is_some()));
    assert_eq!(table.used(), 0);
}

#[test]
fn a_new_instance_takes_the_id_over() {
    let mut table = table_with_three_copies();
    table.insert(instance(9), id(0), Meta::bytes(1), None, State::Folding, true);
    assert_eq!(table.current(&id(0)), Some(instance(0)), "not before it is revealed");
    table.reveal(instance(9));
    assert_eq!(table.current(&id(0)), Some(instance(9)));
    table.doom(instance(0));
    assert_eq!(table.current(&id(0)), Some(instance(9)), "the old one's end does not touch it");
}

#[test]
fn pages_list_every_copy_below_a_prefix_once_and_in_order() {
    let mut table = Table::new(u64::MAX);
    let mut expected = Vec::new();
    let mut insert = |serial: u64, text: &str, is_revealed: bool| {
        let id: ObjectId = text.parse().unwrap();
        table.insert(instance(serial), id.clone(), Meta::bytes(1), None, State::Complete, true);
        if is_revealed {
            table.reveal(instance(serial));
        }
        expected.push((id, instance(serial)));
    };
    for serial in 0..LISTED_MAX as u64 + 10 {
        insert(serial, &format!("a/{serial}"), serial % 3 > 0);
    }
    // Older and newer copies of one object, on both sides of the current one.
    (5000..8000).for_each(|serial| insert(serial, "a/x", serial < 6500));
    ["a", "b/1", "@0000000000000001.5"].iter().enumerate().for_each(|(at, text)| {
        insert(9000 + at as u64, text, true);
    });
    table.add_reader(instance(7000));
    table.doom(instance(7000));
    table.doom(instance(7001));
    expected.retain(|(_, gone)| *gone != instance(7001));
    expected.sort();
    for prefix in ["a/", "a/x", "", "b/", "c/", "@0"] {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let (page, next) = table.page(prefix, after.as_ref());
            assert!(page.len() <= LISTED_MAX);
            all.extend(page);
            let Some(next) = next else { break };
            assert!(after.is_none_or(|after| after < next), "each page comes further");
            after = Some(next);
        }
        let is_under = |(id, _): &&CopyKey| id.to_string().starts_with(prefix);
        assert_eq!(all, expected.iter().filter(is_under).cloned().collect::<Vec<_>>(), "{prefix}");
    }
    let last = ("z/1".parse().unwrap(), instance(1));
    assert_eq!(table.page("a/", Some(&last)), (Vec::new(), None));
    // Copies that no longer exist cost nothing.
    expected.iter().for_each(|(_, instance)| drop(table.doom(*instance)));
    table.remove_reader(instance(7000));
    assert!(table.others.is_empty() && table.current.is_empty());
}

/// One change of a copy of eight.
fn change() -> impl Strategy<Value = (u64, u8, u8)> {
    (0..8_u64, 0..9_u8, 0..4_u8)
}

proptest! {
    /// Goal: reports do not need to look at all copies.
    #[test]
    fn the_counts_that_are_kept_equal_a_recount(changes in prop::collection::vec(change(), 0..100)) {
        let mut table = Table::new(20_000);
        for (serial, what, value) in changes {
            let instance = instance(serial);
            match what {
                0 | 1 if table.get(instance).is_none() => {
                    let state = [State::Complete, State::Arriving, State::Folding]
                        [usize::from(value) % 3];
                    let meta = Meta::bytes(1000 * serial);
                    table.insert(instance, id(serial), meta, None, state, value > 1);
                }
                2 => table.set_state(instance, State::Complete),
                3 => {
                    let places = [
                        Residency::Pending,
                        Residency::Memory,
                        Residency::Disk,
                        Residency::Restoring(Instant::default()),
                    ];
                    table.set_residency(instance, places[usize::from(value)]);
                }
                4 => drop(table.set_pinned(instance, value > 1)),
                5 => table.add_reader(instance),
                6 if table.get(instance).is_some_and(|copy| copy.readers > 0) => {
                    table.remove_reader(instance);
                }
                7 => drop(table.doom(instance)),
                8 => drop(table.shed(1000 * u64::from(value))),
                _ => {}
            }
            let copies = table.iter().map(|(_, copy)| copy);
            prop_assert_eq!(table.census(), &Census::of(copies));
        }
    }
}
