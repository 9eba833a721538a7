//! Every request inside and outside a prefix, with and without its verb. No chain of caveats
//! extends rights.

use alloc::{boxed::Box, vec};

use proptest::prelude::*;

use super::*;
use crate::{
    id::{Instance, NodeId},
    inspection::Inspection,
    message::Listed,
    meta::{Meta, Op},
    request::ObjectRow,
};

const NOW: u64 = 1_790_000_000;

fn capability(caveats: &[&str]) -> Result<Capability, BadRef> {
    let caveats: Result<Vec<Caveat>, BadRef> = caveats.iter().map(|text| text.parse()).collect();
    Capability::of(&caveats?)
}

fn object(text: &str) -> ObjectId {
    text.parse().unwrap()
}

/// Every request about an object, with the verb that it needs, if any.
fn of_object(id: &ObjectId) -> Vec<(Request, Option<Verb>)> {
    let (meta, put, large) = (Meta::bytes(1), Some(id.clone()), Meta::bytes(1 << 20));
    let small = Request::Put { id: put.clone(), meta, bytes: vec![0].into(), ttl_ns: None };
    let (mut inputs, id) = (vec![object("team-a/1")], id.clone());
    inputs.push(id.clone());
    let into = |id| Request::Reduce {
        inputs: vec![object("team-a/1")],
        op: Op::Sum,
        count: 1,
        id: Some(id),
        ttl_ns: None,
    };
    let ids = inputs.clone();
    vec![
        (small, Some(Verb::Put)),
        (Request::Create { id: put, meta: large, ttl_ns: None }, Some(Verb::Put)),
        (Request::Replicate { id: id.clone(), replicas: 2 }, Some(Verb::Put)),
        (Request::Get { id: id.clone() }, Some(Verb::Get)),
        (Request::Follow { id: id.clone() }, Some(Verb::Get)),
        (Request::Wait { ids: ids.clone(), count: 1 }, Some(Verb::Get)),
        (
            Request::Reduce { inputs, op: Op::Sum, count: 2, id: None, ttl_ns: None },
            Some(Verb::Reduce),
        ),
        (into(id.clone()), Some(Verb::Reduce)),
        (Request::Inputs { id: id.clone() }, Some(Verb::Reduce)),
        (Request::LostInputs { id: id.clone() }, Some(Verb::Reduce)),
        (Request::Delete { ids }, Some(Verb::Delete)),
        (Request::AcquireLease { id: id.clone() }, Some(Verb::Delete)),
        (Request::ReleaseLease { id: id.clone() }, None),
        (Request::Locations { id: id.clone(), known: None }, None),
        (Request::Explain { id: id.clone() }, None),
        (Request::Owners { id }, None),
    ]
}

/// Every request with a text that is a name or a prefix, with the verb that it needs.
fn of_text(text: &str) -> Vec<(Request, Option<Verb>)> {
    let name: Name = text.parse().unwrap();
    let (owner, prefix) = (NodeId(1), String::from(text));
    vec![
        (Request::JoinJob { job: name.clone() }, Some(Verb::Put)),
        (Request::Latest { prefix: prefix.clone(), after: None }, Some(Verb::Get)),
        (Request::Prune { name: name.clone(), retain: 1 }, Some(Verb::Delete)),
        (Request::Reserve { name: Some(name) }, Some(Verb::Put)),
        (Request::List { owner, prefix: prefix.clone(), after: None }, Some(Verb::List)),
        (Request::Objects { prefix, after: None }, Some(Verb::List)),
    ]
}

/// Requests that name no object.
fn of_nothing() -> Vec<(Request, Option<Verb>)> {
    let instance = Instance { node: NodeId(1), serial: 1 };
    let put = Request::Put { id: None, meta: Meta::bytes(1), bytes: vec![0].into(), ttl_ns: None };
    vec![
        (put, Some(Verb::Put)),
        (Request::Reserve { name: None }, Some(Verb::Put)),
        (Request::List { owner: NodeId(1), prefix: String::new(), after: None }, Some(Verb::List)),
        (Request::Objects { prefix: String::new(), after: None }, Some(Verb::List)),
        (Request::Status, None),
        (Request::Seal { instance }, None),
        (Request::Abort { instance }, None),
        (Request::Release { instance }, None),
        (Request::CancelReservations, None),
    ]
}

fn said(result: Result<Request, Error>) -> Option<String> {
    match result {
        Ok(_) => None,
        Err(Error::NotAllowed(said)) => Some(said),
        Err(other) => panic!("{other:?}"),
    }
}

fn unique() -> String {
    "@1/1".into()
}

#[test]
fn each_question_takes_its_verb_and_names_below_the_prefix() {
    for &allowed in Verb::ALL {
        let verbs = format!("verbs={allowed}");
        let capability = capability(&["prefix=team-a/", &verbs]).unwrap();
        let refused = |ask| said(capability.authorize(ask, NOW, unique));
        let inside = of_object(&object("team-a/x")).into_iter().chain(of_text("team-a/x"));
        for (ask, verb) in inside.chain(of_nothing()) {
            let is_allowed = verb.is_none_or(|verb| verb == allowed);
            let refused = refused(ask.clone());
            assert_eq!(refused.is_none(), is_allowed, "{allowed}: {ask:?}: {refused:?}");
            let verb = verb.unwrap_or(Verb::Put);
            let missing = format!("get one with {verb}");
            assert!(refused.is_none_or(|said| said.contains(&missing)), "{ask:?}");
        }
        for outside in ["team-b/x", "team-a", "team-ab/x", "@0000000000000001.1", "x/team-a/x"] {
            let asks = of_object(&object(outside)).into_iter();
            let is_text = !outside.starts_with('@') && outside != "team-a";
            for (ask, verb) in asks.chain(if is_text { of_text(outside) } else { vec![] }) {
                let said = refused(ask.clone()).unwrap_or_else(|| panic!("{ask:?} was let in"));
                if verb.is_none_or(|verb| verb == allowed) {
                    let names = format!("of {outside:?} is not allowed");
                    assert!(said.contains(&names), "{ask:?}: {said}");
                    assert!(said.contains("begin with \"team-a/\""), "{ask:?}: {said}");
                }
            }
        }
    }
}

#[test]
fn only_a_capability_for_every_object_allows_a_report() {
    let ask = || Request::Inspect { node: None, inspection: Inspection::Metrics };
    for (prefix, verbs, problem) in [
        ("prefix=", "verbs=list", None),
        ("prefix=", "verbs=get", Some("get one with list")),
        ("prefix=team-a/", "verbs=list", Some("get one for every object")),
    ] {
        let capability = capability(&[prefix, verbs]).unwrap();
        let refused = said(capability.authorize(ask(), NOW, unique));
        assert_eq!(refused.is_some(), problem.is_some(), "{refused:?}");
        assert!(refused.unwrap_or_default().contains(problem.unwrap_or_default()));
    }
}

#[test]
fn an_object_without_a_name_gets_one_below_the_prefix() {
    let capability = capability(&["prefix=team-a/"]).unwrap();
    let made = Some(object("team-a/@1/1"));
    let meta = Meta::bytes(1);
    let asks = [
        Request::Put { id: None, meta: meta.clone(), bytes: vec![0].into(), ttl_ns: None },
        Request::Create { id: None, meta, ttl_ns: None },
        Request::Reduce {
            inputs: vec![object("team-a/1")],
            op: Op::Sum,
            count: 1,
            id: None,
            ttl_ns: None,
        },
        Request::Reserve { name: None },
    ];
    for ask in asks {
        match capability.authorize(ask, NOW, unique) {
            Ok(
                Request::Put { id, .. } | Request::Create { id, .. } | Request::Reduce { id, .. },
            ) => {
                assert_eq!(id, made);
            }
            Ok(Request::Reserve { name }) => assert_eq!(name.map(ObjectId::Named), made),
            other => panic!("{other:?}"),
        }
    }
    let list = |prefix: &str| {
        let ask = Request::List { owner: NodeId(1), prefix: prefix.into(), after: None };
        match capability.authorize(ask, NOW, unique) {
            Ok(Request::List { prefix, .. }) => prefix,
            other => panic!("{other:?}"),
        }
    };
    let copies = |prefix: &str| {
        let ask = Request::Objects { prefix: prefix.into(), after: None };
        match capability.authorize(ask, NOW, unique) {
            Ok(Request::Objects { prefix, .. }) => prefix,
            other => panic!("{other:?}"),
        }
    };
    for (asked, listed) in [("", "team-a/"), ("team", "team-a/"), ("team-a/runs", "team-a/runs")] {
        assert_eq!((list(asked).as_str(), copies(asked).as_str()), (listed, listed));
    }
}

#[test]
fn an_empty_prefix_takes_everything_as_it_is() {
    let capability = capability(&["prefix="]).unwrap();
    for id in ["team-a/x", "x", "@0000000000000001.1"].map(object) {
        for (ask, _) in of_object(&id).into_iter().chain(of_nothing()) {
            assert_eq!(capability.authorize(ask.clone(), NOW, unique), Ok(ask));
        }
    }
    let reply = Ok(Reply::Inputs { ids: vec![object("x"), object("@0000000000000001.1")] });
    assert_eq!(capability.filter_reply(reply.clone()), reply);
    assert!(capability.to_string().ends_with("of every object"));
}

#[test]
fn an_expired_capability_ends_operations_but_begins_none() {
    let capability = capability(&["prefix=team-a/", "expires=1790000000"]).unwrap();
    let asks = || of_object(&object("team-a/x")).into_iter().chain(of_nothing());
    for (ask, _) in asks() {
        assert_eq!(said(capability.authorize(ask, NOW - 1, unique)), None);
    }
    for (ask, _) in asks() {
        let refused = said(capability.authorize(ask.clone(), NOW, unique));
        assert_eq!(refused.is_none(), ask.is_allowed_while_leaving(), "{ask:?}");
        let words = ["until 2026-09-21 14:13:20 UTC", "it has expired"];
        assert!(refused.is_none_or(|said| words.iter().all(|word| said.contains(word))));
    }
}

#[test]
fn a_refusal_names_the_rights_and_the_remedy() {
    let narrow = capability(&["prefix=team-a/", "verbs=get,put"]).unwrap();
    let delete = Request::Delete { ids: vec![object("team-a/1")] };
    assert_eq!(
        said(narrow.authorize(delete, NOW, unique)).unwrap(),
        "delete of \"team-a/1\" is not allowed: this client has a capability for put,get below \"team-a/\"; get one \
         with delete (hoplite token grant)"
    );
    let get = Request::Get { id: object("team-b/1") };
    assert_eq!(
        said(narrow.authorize(get, NOW, unique)).unwrap(),
        "get of \"team-b/1\" is not allowed: this client has a capability for put,get below \"team-a/\"; use names that \
         begin with \"team-a/\""
    );
}

#[test]
fn dates_are_those_of_the_calendar() {
    for (seconds, date) in [
        (0, "1970-01-01 00:00:00 UTC"),
        (951_782_400, "2000-02-29 00:00:00 UTC"),
        (1_709_251_199, "2024-02-29 23:59:59 UTC"),
        (1_709_251_200, "2024-03-01 00:00:00 UTC"),
        (4_102_444_799, "2099-12-31 23:59:59 UTC"),
        (4_107_542_400, "2100-03-01 00:00:00 UTC"),
    ] {
        assert_eq!(Utc(seconds).to_string(), date);
    }
}

#[test]
fn an_answer_names_no_other_tenants_object() {
    let capability = capability(&["prefix=team-a/"]).unwrap();
    let (own, other) = (object("team-a/1"), object("team-b/1"));
    let row = |id: &ObjectId| ObjectRow {
        id: id.clone(),
        instance: Instance { node: NodeId(1), serial: 1 },
        meta: Meta::bytes(1),
        state: "complete".into(),
        pinned: true,
        readers: 0,
        lifetime: None,
    };
    let listed = |id: &ObjectId| Listed {
        id: id.clone(),
        meta: Meta::bytes(1),
        complete: 1,
        partial: 0,
        age_ns: 0,
        lifetime: None,
    };
    let full = "it is full: the largest are team-b/1 of 9 bytes (being put)";
    let lost =
        Error::TooFewInputs { count: 2, possible: 0, gone: vec![own.clone(), other.clone()] };
    let answers: Vec<Result<Reply, Error>> = vec![
        Ok(Reply::Objects {
            rows: vec![row(&own), row(&other)],
            next: Some((other.clone(), row(&other).instance)),
        }),
        Ok(Reply::List { rows: vec![listed(&own), listed(&other)], next: Some(other.clone()) }),
        Ok(Reply::Inputs { ids: vec![own.clone(), other] }),
        Ok(Reply::Explained { what: "x".into(), state: full.into(), lacks: Some((1, 2)) }),
        Err(Error::StoreFull { needed: 1, capacity: 1, pinned: 1, largest: full.into() }),
        Err(Error::NoMemory { needed: 1, detail: full.into() }),
        Err(Error::Timeout { what: "x".into(), waited_ns: 1, state: full.into() }),
        Err(lost),
    ];
    for reply in answers {
        let filter_reply = capability.filter_reply(reply.clone());
        assert_ne!(filter_reply, reply);
        let text = format!("{filter_reply:?}");
        assert!(!text.contains("team-b"), "{text}");
        let has_own = !matches!(
            reply,
            Ok(Reply::Explained { .. })
                | Err(Error::StoreFull { .. } | Error::NoMemory { .. } | Error::Timeout { .. })
        );
        assert!(!has_own || text.contains("team-a/1"), "{text}");
    }
    let same = Ok(Reply::Put { id: own });
    assert_eq!(capability.filter_reply(same.clone()), same);
}

#[test]
fn a_chain_that_extends_rights_or_is_malformed_is_rejected() {
    for (caveats, why) in [
        (&["prefix=team-a/", "prefix=team-b/"][..], "is not below"),
        (&["prefix=team-a/x/", "prefix=team-a/"], "is not below"),
        (&["verbs=get", "prefix=a/", "verbs=get,put"], "are not among get"),
        (&["prefix=a/", "expires=5", "expires=6"], "which expires at 1970-01-01 00:00:05 UTC"),
        (&["verbs=get"], "needs a prefix"),
        (&[], "needs a prefix"),
        (&["prefix=team-a"], "must end with /"),
        (&["prefix=@1/"], "begins with @"),
        (&["prefix=a\n/"], "control character"),
        (&["prefix=a/", "verbs="], "unknown verb"),
        (
            &["prefix=a/", "verbs=get,look"],
            "unknown verb \"look\": use one or more of put,get,delete",
        ),
        (&["prefix=a/", "expires=soon"], "unknown caveat"),
        (&["prefix=a/", "expires=-1"], "unknown caveat"),
        (&["prefix=a/", "host=b"], "unknown caveat"),
        (&["prefix=a/", ""], "unknown caveat"),
    ] {
        let error = capability(caveats).unwrap_err().to_string();
        assert!(error.contains(why), "{caveats:?}: {error}");
    }
    let long = |bytes: usize| capability(&[&format!("prefix={}/", "x".repeat(bytes - 1))]);
    assert!(long(PREFIX_BYTES_MAX).is_ok() && long(PREFIX_BYTES_MAX + 1).is_err());
}

fn prefix() -> impl Strategy<Value = String> {
    prop::collection::vec("[ab]/", 1..4).prop_map(|parts| parts.concat())
}

fn caveat() -> impl Strategy<Value = Caveat> {
    let verbs = prop::collection::btree_set(prop::sample::select(Verb::ALL.to_vec()), 0..=5);
    prop_oneof![
        prefix().prop_map(Caveat::Prefix),
        verbs.prop_map(Caveat::Verbs),
        (NOW - 2..NOW + 3).prop_map(Caveat::Expires),
    ]
}

proptest! {
    #[test]
    fn a_caveat_never_widens(
        caveats in prop::collection::vec(caveat(), 0..5),
        more in caveat(),
        name in "[ab]/([ab]/){0,2}[ab]",
        now in NOW - 3..NOW + 3,
    ) {
        let narrower: Vec<Caveat> = caveats.iter().cloned().chain([more]).collect();
        // Invalid chains have no rights to compare.
        if let (Ok(wide), Ok(narrow)) = (Capability::of(&caveats), Capability::of(&narrower)) {
            let asks = of_object(&object(&name)).into_iter().chain(of_text(&name));
            for (ask, _) in asks.chain(of_nothing()) {
                let is_allowed = narrow.authorize(ask.clone(), now, unique).is_ok();
                prop_assert!(!is_allowed || wide.authorize(ask.clone(), now, unique).is_ok(), "{ask:?}");
            }
        }
    }

    #[test]
    fn an_admitted_request_names_no_object_outside(caveats in prop::collection::vec(caveat(), 1..4), name in "[ab]/[ab]") {
        if let Ok(capability) = Capability::of(&caveats) {
            let asks = of_object(&object(&name)).into_iter().chain(of_text(&name));
            for (ask, _) in asks.chain(of_nothing()) {
                if let Ok(ask) = capability.authorize(ask, 0, unique) {
                    let claim = capability.claim(&ask);
                    prop_assert!(claim.names.iter().all(|name| name.starts_with(capability.prefix())), "{ask:?}");
                    let is_new = |id: &Option<ObjectId>| id.as_ref().is_some_and(|id| capability.has(id));
                    if let Request::Put { id, .. } | Request::Create { id, .. } | Request::Reduce { id, .. } = &ask {
                        prop_assert!(is_new(id), "{ask:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn caveats_read_back(caveat in caveat()) {
        let text = caveat.to_string();
        let empty = matches!(&caveat, Caveat::Verbs(verbs) if verbs.is_empty());
        prop_assert_eq!(text.parse::<Caveat>().ok(), (!empty).then_some(caveat));
    }

    #[test]
    fn any_text_is_read_or_refused(text in ".*") {
        let _ = text.parse::<Caveat>().map(|caveat| Capability::of(&[caveat]));
    }
}

/// Every error that can name an object, for `id`.
fn errors_of(id: &ObjectId) -> Vec<Error> {
    let (detail, holder) = (format!("node 1 held {id}"), NodeId(1));
    let meta = Box::new(Meta::bytes(12_345));
    let metas = Box::new((Meta::bytes(12_345), Meta::bytes(54_321)));
    let own = object("team-a/sum");
    let state = format!("1 of 3 inputs arrived; {MISSING}team-a/1, {id} and 1 more");
    vec![
        Error::Timeout { what: "object team-a/sum".into(), waited_ns: 1, state },
        Error::Timeout { what: format!("object {id}"), waited_ns: 1, state: String::new() },
        Error::ObjectLost { id: id.clone(), detail: String::new() },
        Error::ObjectLost { id: own.clone(), detail: detail.clone() },
        Error::ObjectDeleted { id: id.clone() },
        Error::NameTaken { id: id.clone(), holder },
        Error::StoreFull {
            needed: 1,
            capacity: 1,
            pinned: 1,
            largest: format!("{}{id} of 12345 bytes (arriving)", table::LARGEST),
        },
        Error::NoMemory { needed: 1, detail: format!("{}{id} of 1 bytes", table::LARGEST) },
        Error::ShapeMismatch { first: own.clone(), other: id.clone(), metas: metas.clone() },
        Error::ShapeMismatch { first: id.clone(), other: own, metas },
        Error::Unreducible { id: id.clone(), meta, op: Op::Sum, advice: String::new() },
        Error::TooFewInputs { count: 2, possible: 1, gone: vec![id.clone()] },
        Error::InvalidArgument(detail.clone()),
        Error::ObjectCorrupt { id: id.clone(), senders: vec![holder] },
        Error::NodeDown(detail),
    ]
}

#[test]
fn no_error_names_an_object_outside_the_prefix_and_each_names_those_inside() {
    let capability = capability(&["prefix=team-a/"]).unwrap();
    let minted = ObjectId::Minted { node: NodeId(7), serial: 9 };
    for other in [object("team-b/secret"), object("secret/team-a/1"), minted] {
        for error in errors_of(&other) {
            let before = error.to_string();
            let filter_reply = capability.filter_reply(Err(error)).unwrap_err();
            for text in [filter_reply.to_string(), format!("{filter_reply:?}")] {
                let is_told = text.contains(&other.to_string()) || text.contains("54321");
                assert!(!is_told && !text.contains("secret"), "{before}: {text}");
            }
            let sizes = matches!(filter_reply, Error::Unreducible { .. });
            assert!(!sizes, "{before}: {filter_reply}");
        }
    }
    for error in errors_of(&object("team-a/2")) {
        let filter_reply = capability.filter_reply(Err(error.clone())).unwrap_err();
        match &error {
            Error::StoreFull { .. } | Error::NoMemory { .. } => {
                assert!(!filter_reply.to_string().contains("team-a/2"), "{filter_reply}");
            }
            _ => assert_eq!(filter_reply, error),
        }
    }
    let whole = Capability::of(&[Caveat::Prefix(String::new())]).unwrap();
    for error in errors_of(&object("team-b/secret")) {
        assert_eq!(whole.filter_reply(Err(error.clone())).unwrap_err(), error);
    }
    // The progress of a reduce, as `Explain` returns it.
    let state = format!("it is the result of a reduce; {MISSING}secret");
    let (what, lacks) = ("x".into(), None);
    let Ok(Reply::Explained { state, .. }) =
        capability.filter_reply(Ok(Reply::Explained { what, state, lacks }))
    else {
        panic!()
    };
    assert!(!state.contains("secret"), "{state}");
}

#[test]
fn the_tenant_of_a_capability_is_that_of_its_grant() {
    let tenant = |caveats: &[&str]| capability(caveats).unwrap().tenant().to_string();
    assert_eq!(tenant(&["prefix=team-a/", "prefix=team-a/runs/"]), "team-a/");
    assert_eq!(tenant(&["prefix=", "prefix=team-b/", "prefix=team-b/x/"]), "team-b/");
    assert_eq!(tenant(&["prefix="]), "");
}
