//! A step's metadata on the device: the same numbers, at the same addresses, in one copy.

use super::*;
use crate::cuda::{Buffer, Contents, DeviceBatch, HostBatch, Launches, read_lent, rows};
use crate::{Rope, RopeScaling};
use candle_core::{CpuStorage, Storage};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is lent is known to the whole process.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A step's numbers, apart from its positions.
struct Numbers {
    positions: Vec<u32>,
    tables: Vec<i32>,
    slots: Vec<i64>,
}

impl Numbers {
    fn new(at: u32) -> Self {
        let slots = vec![-1, i64::from(at) << 33 | 7, i64::from(at)];
        Self { positions: vec![at, at + 1, 0], tables: vec![at as i32, -1, 3, i32::MAX, -1], slots }
    }

    fn host<'a>(&'a self, rope: &Rope) -> HostBatch<'a> {
        let mut host = HostBatch::new(&self.positions, [rope, rope]).unwrap();
        host.indices(&self.tables);
        host.slots(&self.slots);
        host
    }

    /// The contents of buffers as an op would list them.
    fn contents(&self) -> [Contents<'_>; 3] {
        [Contents::Indices(&self.tables), Contents::Slots(&self.slots), Contents::Lengths(&self.positions)]
    }
}

fn rope() -> Rope {
    Rope::new(10_000.0, 8, &RopeScaling::None).unwrap()
}

/// What launches over these contents read while they are lent: where each lies, and its words.
fn read<'a>(contents: impl IntoIterator<Item = Contents<'a>>) -> Vec<(usize, Vec<u32>)> {
    let buffers = contents.into_iter().map(|contents| Buffer { name: "", contents }).collect();
    let mut launches = Launches { buffers, launches: Vec::new() };
    read_lent(&mut launches).unwrap();
    launches.buffers.iter().map(|buffer| words(&buffer.contents)).collect()
}

fn words(contents: &Contents<'_>) -> (usize, Vec<u32>) {
    let Contents::Uploaded(words) = contents else { panic!("{contents:?}") };
    let (storage, layout) = words.storage_and_layout();
    let Storage::Cpu(CpuStorage::U32(data)) = &*storage else { panic!("words") };
    (data[layout.start_offset()..].as_ptr().addr(), words.to_vec1().unwrap())
}

#[test]
fn launches_read_the_numbers_of_the_host_where_they_were_uploaded() {
    let _turn = turn();
    let (rope, numbers) = (rope(), Numbers::new(5));
    let host = numbers.host(&rope);
    let mut batch = DeviceBatch::new(host.words(), &Device::Cpu).unwrap();
    batch.upload(&host).unwrap();
    let (found, told_once) = batch.lend(&host, || {
        let angles = rope.table(&numbers.positions, 3, 8).unwrap();
        let part = Contents::Indices(&numbers.tables[2..4]);
        read(numbers.contents().into_iter().chain([part, Contents::Floats(&angles.cos), Contents::Floats(&angles.sin)]))
    });
    let expected = rope.angles(&numbers.positions, 3).unwrap();
    let bits = |numbers: &[f32]| numbers.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
    let wanted = [
        vec![5, u32::MAX, 3, i32::MAX as u32, u32::MAX],
        vec![u32::MAX, u32::MAX, 7, 5 << 1, 5, 0],
        vec![5, 6, 0],
        vec![3, i32::MAX as u32],
        bits(&expected.cos),
        bits(&expected.sin),
    ];
    assert_eq!(found.iter().map(|(_, words)| words.clone()).collect::<Vec<_>>(), wanted);
    assert!(told_once);
    // Each part may be read as vectors.
    assert!(found.iter().enumerate().all(|(part, (address, _))| part == 3 || address % 8 == 0));
}

#[test]
fn addresses_are_the_same_in_every_step_of_the_same_lengths() {
    let _turn = turn();
    let rope = rope();
    let steps = [Numbers::new(5), Numbers::new(90)];
    let mut batch = DeviceBatch::new(steps[0].host(&rope).words(), &Device::Cpu).unwrap();
    let mut read_step = |numbers: &Numbers| {
        let host = numbers.host(&rope);
        batch.upload(&host).unwrap();
        batch.lend(&host, || read(numbers.contents())).0
    };
    let [first, second] = [read_step(&steps[0]), read_step(&steps[1])];
    let addresses = |read: &[(usize, Vec<u32>)]| read.iter().map(|(address, _)| *address).collect::<Vec<_>>();
    assert_eq!(addresses(&first), addresses(&second));
    assert!(first.iter().zip(&second).all(|((_, before), (_, after))| before != after));
}

#[test]
fn a_step_that_is_recorded_reads_what_a_later_one_uploads() {
    let _turn = turn();
    let (rope, recorded, later) = (rope(), Numbers::new(5), Numbers::new(90));
    let (old, new) = (recorded.host(&rope), later.host(&rope));
    let mut batch = DeviceBatch::new(old.words(), &Device::Cpu).unwrap();
    batch.upload(&new).unwrap();
    let (found, _) = batch.lend(&old, || rows(&recorded.positions, &Device::Cpu).unwrap().to_vec1::<u32>().unwrap());
    assert_eq!(found, later.positions);
}

#[test]
fn what_only_the_host_knows_is_noted_and_parameters_of_an_op_are_not() {
    let _turn = turn();
    let (rope, numbers) = (rope(), Numbers::new(5));
    let (host, foreign, sinks) = (numbers.host(&rope), [1u32, 2], [0.5f32]);
    let mut batch = DeviceBatch::new(host.words(), &Device::Cpu).unwrap();
    batch.upload(&host).unwrap();
    let told_once = |contents: Contents<'_>| {
        let mut launches = Launches { buffers: vec![Buffer { name: "", contents }], launches: Vec::new() };
        batch.lend(&host, || read_lent(&mut launches).unwrap()).1
    };
    assert!(told_once(Contents::Floats(&sinks)));
    assert!(!told_once(Contents::Lengths(&foreign)));
    assert!(!told_once(Contents::Pairs(&[(1, 2)])));
    let other = Rope::new(500.0, 8, &RopeScaling::None).unwrap();
    assert!(!batch.lend(&host, || other.table(&numbers.positions, 3, 8).is_ok()).1);
    // Nothing is lent any more.
    assert_eq!(rows(&numbers.positions, &Device::Cpu).unwrap().elem_count(), 3);
    let buffers = vec![Buffer { name: "", contents: Contents::Indices(&numbers.tables) }];
    let mut launches = Launches { buffers, launches: Vec::new() };
    read_lent(&mut launches).unwrap();
    assert!(matches!(launches.buffers[0].contents, Contents::Indices(_)));
}

#[test]
fn more_words_than_there_is_room_for_are_refused() {
    let _turn = turn();
    let (rope, numbers) = (rope(), Numbers::new(5));
    let host = numbers.host(&rope);
    let mut batch = DeviceBatch::new(host.words() - 1, &Device::Cpu).unwrap();
    let error = batch.upload(&host).unwrap_err().to_string();
    assert_eq!(error, format!("device batch: {} words, and room for {}", host.words(), host.words() - 1));
}
