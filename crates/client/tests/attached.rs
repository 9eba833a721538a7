//! Clients that attach to a socket: reconnects, options, and the search of `init`.

mod common;

use std::{fs, os::unix::fs::PermissionsExt, process::Command, time::Duration};

use common::{Embedded, Folder, LONG};
use hoplite::{ClientOptions, ErrorKind, Node, NodeOptions, connect, init};

#[test]
fn attached_clients_share_the_objects_of_their_node() {
    let embedded = Embedded::new();
    let client = connect(&embedded.socket(), ClientOptions::default(), Some(LONG)).unwrap();
    assert_eq!(client.socket(), embedded.node.socket());
    for size in [10, 100_000] {
        let name = format!("x/{size}");
        client.put(vec![1; size]).name(&name).wait().unwrap();
        assert!(embedded.client.get(&name).wait().unwrap().bytes() == vec![1; size]);
        assert!(client.get(&name).start().wait().unwrap().bytes() == vec![1; size]);
        let awaited = pollster::block_on(client.get(&name).timeout(LONG).into_future());
        assert!(awaited.unwrap().bytes() == vec![1; size]);
    }
    let mut buffer = client.create("float32", &[100_000]).timeout(LONG).wait().unwrap();
    buffer.as_mut_slice::<f32>().unwrap().fill(2.0);
    let reference = buffer.seal().timeout(LONG).wait().unwrap();
    let view = embedded.client.get(&reference).wait().unwrap();
    assert!(view.as_slice::<f32>().unwrap() == vec![2.0; 100_000]);
}

#[test]
fn client_attaches_to_the_next_node() {
    let embedded = Embedded::new();
    let address = embedded.socket();
    let client = connect(&address, ClientOptions::default(), Some(LONG)).unwrap();
    let steady = ClientOptions { reconnect: false, ..ClientOptions::default() };
    let steady = connect(&address, steady, Some(LONG)).unwrap();
    let waiting = client.get("missing").start();
    // The next node has this client's lease too.
    let lease = client.lease("leased").timeout(LONG).wait().unwrap();
    embedded.node.close(Some(LONG));
    assert_eq!(waiting.wait().unwrap_err().kind(), ErrorKind::NodeDown);
    let gone = client.put(b"x").timeout(Duration::from_millis(1)).wait().unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NodeDown);
    assert!(gone.to_string().contains("no other node served that socket"), "{gone}");
    // A timeout of 0 limits the wait for objects, not for the node.
    let at_once = client.latest("x/").timeout(Duration::ZERO).start();
    let next = Node::start(embedded.folder.options()).unwrap();
    assert_eq!(at_once.wait().unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(steady.put(b"x").wait().unwrap_err().kind(), ErrorKind::NodeDown);
    let started = client.put(b"x").name("leased").timeout(LONG).start();
    assert_eq!(started.wait().unwrap().as_str(), "leased");
    let own = next.client(ClientOptions::default()).unwrap();
    assert_eq!(own.get("leased").wait().unwrap().bytes(), b"x");
    drop(lease);
    // Without the lease of the client, the node would not delete it.
    let waiting = own.lease("other").timeout(LONG).wait().unwrap();
    drop(waiting);
    loop {
        let locations = own.locations("leased").timeout(LONG).wait();
        if !locations.is_ok_and(|locations| !locations.is_empty()) {
            break;
        }
    }
    client.close();
    assert_eq!(client.put(b"x").wait().unwrap_err().kind(), ErrorKind::ClientClosed);
}

#[test]
fn jobs_end_with_their_last_client() {
    let embedded = Embedded::new();
    let options = ClientOptions { job: Some("run".into()), ..ClientOptions::default() };
    let client = connect(&embedded.socket(), options, Some(LONG)).unwrap();
    let reference = client.put(b"of the job").wait().unwrap();
    drop(client);
    loop {
        if let Err(error) = embedded.client.get(&reference).timeout(LONG).wait() {
            assert_eq!(error.kind(), ErrorKind::ObjectDeleted);
            break;
        }
    }
    let wrong = ClientOptions { job: Some("@run".into()), ..ClientOptions::default() };
    let error = embedded.node.client(wrong).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn digests_are_announced() {
    let embedded = Embedded::new();
    let options = ClientOptions { digest: Some(true), ..ClientOptions::default() };
    let client = embedded.node.client(options).unwrap();
    for size in [10, 2 << 20] {
        let put = client.put(vec![3; size]).wait().unwrap();
        assert!(client.get(&put).wait().unwrap().bytes() == vec![3; size]);
        let started = client.put(vec![3; size]).start().wait().unwrap();
        assert!(client.get(&started).wait().unwrap().bytes() == vec![3; size]);
    }
}

#[test]
fn a_call_without_a_timeout_takes_that_of_its_client() {
    let embedded = Embedded::new();
    let options =
        ClientOptions { timeout: Some(Duration::from_millis(50)), ..ClientOptions::default() };
    let client = embedded.node.client(options).unwrap();
    for result in [client.get("late/1").wait(), client.get("late/1").start().wait()] {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Timeout);
    }
    let explicit = client.get("late/1").timeout(None).start();
    client.put(b"here").name("late/1").wait().unwrap();
    assert!(explicit.wait().unwrap().bytes() == b"here");
}

#[test]
fn settings_come_from_a_file() {
    let folder = Folder::new();
    let config = folder.path().join("hoplite.toml");
    let start = |text: &str| {
        fs::write(&config, text).unwrap();
        let options = NodeOptions { capacity: None, ..folder.options() };
        Node::start(NodeOptions { config: Some(config.clone()), ..options })
    };
    let node = start(
        "cluster = \"mine\"\nno_auth = true\ndetection_timeout = 2\ncapacity = 0x2000000\njoin = []\nrack = \"r7\"\n",
    )
    .unwrap();
    let client = node.client(ClientOptions::default()).unwrap();
    let status = client.status().wait().unwrap();
    assert!(status.contains("\"mine\"") && status.contains("33554432"), "{status}");
    assert!(node.address().is_some());
    node.close(Some(LONG));
    for (text, reason) in [
        ("nonsense = 1", "unknown setting nonsense"),
        ("[node]\ncluster = \"x\"", "[node] is a section"),
        ("no_auth = 7", "no_auth \"7\" is not valid"),
        ("cluster =", "is not valid TOML"),
        ("token = \"x\"", "other users can read or write it"),
        ("capacity = \"9 PiB\"", "is not a size"),
        ("spill_persistent = true", "has no effect without a spill directory"),
    ] {
        fs::write(&config, text).unwrap();
        fs::set_permissions(&config, fs::Permissions::from_mode(0o644)).unwrap();
        let options = NodeOptions { capacity: None, ..folder.options() };
        let error =
            Node::start(NodeOptions { config: Some(config.clone()), ..options }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(reason), "{error}");
        assert!(error.to_string().contains("hoplite.toml"), "{error}");
    }
}

/// The program of `init_finds_and_starts_nodes`: calls `init` as its environment requires, and prints the sockets.
#[test]
#[ignore = "a program that another test runs"]
fn program() {
    let options = ClientOptions::default;
    let client = init(None, options(), Some(LONG)).unwrap();
    let again = init(None, options(), Some(LONG)).unwrap();
    let reference = again.put(b"x").wait().unwrap();
    assert_eq!(client.get(&reference).wait().unwrap().bytes(), b"x");
    println!("socket={}", client.socket().unwrap().display());
    println!("again={}", again.socket().unwrap().display());
    println!("status={}", client.status().wait().unwrap());
}

/// Runs `program` with variables, and returns the value of each line of its output.
fn run(folder: &Folder, variables: &[(&str, &str)]) -> Result<Vec<String>, String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "program", "--ignored", "--nocapture"]);
    command.env("XDG_RUNTIME_DIR", folder.path()).env("HOPLITE_CAPACITY", "16MiB");
    command.env_remove("SLURM_JOB_ID").envs(variables.iter().copied());
    let output = command.output().unwrap();
    let [out, error] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    if !output.status.success() {
        return Err(out + &error);
    }
    let value = |line: &str| line.split_once('=').map(|(_, value)| value.to_owned());
    Ok(out.lines().filter_map(value).collect())
}

#[test]
fn init_finds_and_starts_nodes() {
    let folder = Folder::new();
    let home = folder.path().join("hoplite");
    let socket = |name: &str| home.join(name).display().to_string();
    // No node runs: the process embeds one, and its socket is gone afterwards.
    let started = run(&folder, &[]).unwrap();
    assert_eq!(started[..2], [socket("node-embedded.sock"), socket("node-embedded.sock")]);
    assert!(!home.join("node-embedded.sock").exists());
    let started = run(&folder, &[("SLURM_JOB_ID", "7")]).unwrap();
    assert_eq!(started[0], socket("node-slurm7-embedded.sock"));
    // A secret of this user, as Python creates it.
    let clustered = run(&folder, &[("HOPLITE_CLUSTER", "mine")]).unwrap();
    assert!(clustered[2].contains("\"mine\""), "{}", clustered[2]);
    let secret = fs::metadata(home.join("secret")).unwrap();
    assert_eq!((secret.len(), secret.permissions().mode() & 0o777), (53, 0o600));
    // This user's node runs.
    let path = home.join("node.sock");
    let node = Node::start(NodeOptions { socket: Some(path), ..folder.options() }).unwrap();
    assert_eq!(run(&folder, &[]).unwrap()[0], socket("node.sock"));
    assert_eq!(run(&folder, &[("SLURM_JOB_ID", "7")]).unwrap()[0], socket("node.sock"));
    assert_eq!(run(&folder, &[("HOPLITE_ADDRESS", "local")]).unwrap()[0], socket("node.sock"));
    let given = format!("unix:{}", socket("node.sock"));
    assert_eq!(run(&folder, &[("HOPLITE_ADDRESS", &given)]).unwrap()[0], socket("node.sock"));
    let other = run(&folder, &[("HOPLITE_CLUSTER", "mine")]).unwrap_err();
    assert!(other.contains("belongs to cluster \"default\""), "{other}");
    let wrong = run(&folder, &[("HOPLITE_ADDRESS", "nonsense")]).unwrap_err();
    assert!(wrong.contains("InvalidArgument"), "{wrong}");
    node.close(Some(LONG));
}

#[test]
fn init_joins_the_cluster_at_an_address() {
    let folder = Folder::new();
    let seed = Embedded::with(|options| NodeOptions {
        listen: Some("127.0.0.1:0".into()),
        no_auth: Some(true),
        ..options
    });
    let address = seed.node.address().unwrap();
    let joined = [("HOPLITE_ADDRESS", address.as_str()), ("HOPLITE_NO_AUTH", "1")];
    let started = run(&folder, &joined).unwrap();
    assert!(started[0].ends_with("node-embedded.sock"), "{}", started[0]);
    assert!(started[2].contains(&seed.node.id()), "{}", started[2]);
    // Without `no_auth`, it would use the secret of this user, which the other node does not have.
    let rejected = run(&folder, &joined[..1]).unwrap_err();
    assert!(rejected.contains("JoinError"), "{rejected}");
}
