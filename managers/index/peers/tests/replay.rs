//! A publisher that loses messages on the way, over real sockets: what was lost comes back from its replay endpoint.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cacheplan_index::{Batch, Bounds, Event, Index, Kind, Prompt, Reuse, Stored, Trust, WorkerRank};
use cacheplan_index_peers::subscribe::{Publisher, subscribe};
use rstest::rstest;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

const BLOCK: u32 = 16;

/// The batch of a number stores the block of that number, at a second of the process.
fn batch(number: u64, began: u64) -> Vec<u8> {
    let stored = Event::Stored(Stored {
        hashes: vec![number + 1000],
        parent: number.checked_sub(1).map(|before| before + 1000),
        tokens: (number as u32 * BLOCK..(number as u32 + 1) * BLOCK).collect(),
        block: BLOCK,
        group: Some(0),
        kind: Some(Kind::Full),
        on_device: true,
        ..Stored::default()
    });
    Batch { rank: 0, time: (began + number) * 1_000_000, events: vec![stored] }.to_msgpack()
}

fn message(frames: [Vec<u8>; 3]) -> ZmqMessage {
    let [first, rest @ ..] = frames;
    let mut message = ZmqMessage::from(first);
    rest.into_iter().for_each(|frame| message.push_back(frame.into()));
    message
}

/// A publisher as vLLM's is: it numbers batches, keeps them, and sends those from a number on to whoever asks.
struct Lossy {
    socket: PubSocket,
    kept: Arc<Mutex<Vec<(u64, Vec<u8>)>>>,
}

impl Lossy {
    async fn new() -> (Self, Publisher) {
        let mut socket = PubSocket::new();
        let events = socket.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let mut router = RouterSocket::new();
        let replay = router.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let kept = Arc::new(Mutex::new(Vec::<(u64, Vec<u8>)>::new()));
        let answers = Arc::clone(&kept);
        tokio::spawn(async move {
            loop {
                let [who, _, from]: [_; 3] = router.recv().await.unwrap().into_vec().try_into().unwrap();
                let from = u64::from_be_bytes(from.as_ref().try_into().unwrap());
                let mut all = answers.lock().unwrap().clone();
                all.retain(|(number, _)| *number >= from);
                all.push((u64::MAX, Vec::new()));
                for (number, batch) in all {
                    let mut reply = message([who.to_vec(), Vec::new(), number.to_be_bytes().to_vec()]);
                    reply.push_back(batch.into());
                    router.send(reply).await.unwrap();
                }
            }
        });
        (Self { socket, kept }, Publisher { events, replay: Some(replay) })
    }

    /// Publishes a batch, which arrives or does not.
    async fn publish(&mut self, number: u64, began: u64, arrives: bool) {
        let batch = batch(number, began);
        self.kept.lock().unwrap().push((number, batch.clone()));
        if arrives {
            let sent = message([b"kv-events".to_vec(), number.to_be_bytes().to_vec(), batch]);
            self.socket.send(sent).await.unwrap();
        }
    }
}

fn reuse(index: &Index, blocks: u32) -> Option<Reuse> {
    let tokens: Vec<u32> = (0..=blocks * BLOCK).collect();
    index.ask(Prompt::Tokens(&tokens)).first().map(|answer| answer.reuse)
}

/// Publishes the last batch until it arrives: a subscription takes a while.
async fn arrives(index: &Index, lossy: &mut Lossy, last: u64, began: u64) {
    let started = Instant::now();
    while index.next(WorkerRank { worker: 7, rank: 0 }) != Some(last + 1) {
        assert!(started.elapsed() < Duration::from_secs(30), "batch {last} did not arrive");
        let sent = message([Vec::new(), last.to_be_bytes().to_vec(), batch(last, began)]);
        lossy.socket.send(sent).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[rstest]
#[case::nothing(&[], 40)]
#[case::the_first(&[0], 40)]
#[case::one(&[17], 40)]
#[case::many(&[0, 1, 2, 5, 9, 10, 11, 30, 38], 40)]
#[tokio::test]
async fn what_was_lost_is_replayed_before_it_counts(#[case] lost: &[u64], #[case] batches: u64) {
    let index = Arc::new(Index::new(Bounds::default()));
    let (mut lossy, publisher) = Lossy::new().await;
    tokio::spawn(subscribe(Arc::clone(&index), 7, publisher, |failed| panic!("{failed}")));
    let lost: HashSet<u64> = lost.iter().copied().collect();
    for number in 0..batches - 1 {
        lossy.publish(number, 0, !lost.contains(&number)).await;
    }
    lossy.kept.lock().unwrap().push((batches - 1, batch(batches - 1, 0)));
    arrives(&index, &mut lossy, batches - 1, 0).await;
    let reuse = reuse(&index, batches as u32).unwrap();
    assert_eq!((reuse.tokens, reuse.trust), ((batches as u32 * BLOCK) as usize, Trust::Exact));
}

#[tokio::test]
async fn what_the_publisher_keeps_no_longer_makes_an_estimate() {
    let index = Arc::new(Index::new(Bounds::default()));
    let (mut lossy, publisher) = Lossy::new().await;
    tokio::spawn(subscribe(Arc::clone(&index), 7, publisher, |failed| panic!("{failed}")));
    for number in 3..9 {
        lossy.publish(number, 0, false).await;
    }
    arrives(&index, &mut lossy, 8, 0).await;
    let reuse = reuse(&index, 9).unwrap();
    assert_eq!((reuse.tokens, reuse.trust), (0, Trust::Estimate));
    assert_eq!(index.sizes()[0].1, 6);
}

#[tokio::test]
async fn a_publisher_that_began_anew_unseen_is_taken_from_its_beginning() {
    let index = Arc::new(Index::new(Bounds::default()));
    let (mut lossy, publisher) = Lossy::new().await;
    tokio::spawn(subscribe(Arc::clone(&index), 7, publisher, |failed| panic!("{failed}")));
    for number in 0..20 {
        lossy.publish(number, 0, number != 19).await;
    }
    arrives(&index, &mut lossy, 19, 0).await;
    // Another process, of whose batches the first ones are lost.
    lossy.kept.lock().unwrap().clear();
    for number in 0..5 {
        lossy.publish(number, 1000, false).await;
    }
    arrives(&index, &mut lossy, 4, 1000).await;
    let reuse = reuse(&index, 20).unwrap();
    assert_eq!((reuse.tokens, reuse.trust), (5 * BLOCK as usize, Trust::Exact));
}

#[rstest]
#[case("tcp://a:1", Some(("tcp://a:1", None)))]
#[case("tcp://a:1,tcp://a:2", Some(("tcp://a:1", Some("tcp://a:2"))))]
#[case("a:1", None)]
#[case("tcp://a:1,", None)]
#[case("tcp://a:1,tcp://a:2,tcp://a:3", None)]
fn a_publisher_is_named_by_one_endpoint_or_two(#[case] text: &str, #[case] expected: Option<(&str, Option<&str>)>) {
    let read = text.parse::<Publisher>().ok();
    assert_eq!(read.as_ref().map(|one| (one.events.as_str(), one.replay.as_deref())), expected);
}
