//! A step's lists on the device: the same numbers, at the same addresses, in one copy; and who computes its ops.

use super::*;
use crate::{
    Buffer, CausalConv1d, Contents, KernelError, Launcher, Launches, Numbers, Positions, Rope, RopeScaling, Rotations,
    Routing, Rows, StepBuffer, StepLists, Target,
};
use candle_core::{CpuStorage, Storage};
use rstest::rstest;
use std::sync::{Arc, Mutex};

/// Launches nothing, and names the ops that it was asked for.
#[derive(Debug, Default)]
struct Nothing {
    refuses: bool,
    left: Mutex<Vec<&'static str>>,
}

impl Launcher for Nothing {
    fn device(&self) -> Device {
        Device::Cpu
    }

    fn target(&self) -> crate::error::Result<Target> {
        Ok(Target { processors: 4, shared_bytes: 0 })
    }

    fn launch(&self, _: &'static str, _: &Launches<'_>) -> crate::error::Result<Vec<Tensor>> {
        Ok(Vec::new())
    }

    fn without_kernel(&self, op: &'static str) -> crate::error::Result<()> {
        self.left.lock().unwrap().push(op);
        if self.refuses { Err(KernelError::NoKernel { op }) } else { Ok(()) }
    }
}

fn launching(refuses: bool) -> (Backend, Arc<Nothing>) {
    let launcher = Arc::new(Nothing { refuses, ..Nothing::default() });
    (Backend::Launching(launcher.clone()), launcher)
}

/// A step's numbers.
struct Step {
    positions: Vec<u32>,
    tables: Vec<i32>,
    slots: Vec<i64>,
    rotations: Rotations,
}

/// The same as lists.
struct Listed<'a> {
    positions: Positions<'a>,
    rows: Numbers<'a, u32>,
    tables: Numbers<'a, i32>,
    slots: Numbers<'a, i64>,
}

impl Step {
    fn new(at: u32) -> Self {
        let slots = vec![-1, i64::from(at) << 33 | 7, i64::from(at)];
        let positions = vec![at, at + 1, 0];
        let rotations = Rotations::new(&positions, [&rope(), &rope()]).unwrap();
        Self { positions, tables: vec![at as i32, -1, 3, i32::MAX, -1], slots, rotations }
    }

    fn list(&mut self) -> (Listed<'_>, StepLists) {
        let mut lists = StepLists::default();
        let positions = self.rotations.list(&self.positions, &mut lists);
        let rows = lists.add(&self.positions);
        let (tables, slots) = (lists.add(&self.tables), lists.add(&self.slots));
        (Listed { positions, rows, tables, slots }, lists)
    }
}

fn rope() -> Rope {
    Rope::new(10_000.0, 8, &RopeScaling::None).unwrap()
}

/// What launches over these contents read in a step: where each lies, and its words.
fn read<'a>(on: &Run<'_>, contents: impl IntoIterator<Item = Contents<'a>>) -> Vec<(usize, Vec<u32>)> {
    let buffers = contents.into_iter().map(|contents| Buffer { name: "", contents }).collect();
    let mut launches = Launches { buffers, launches: Vec::new() };
    on.place(&mut launches).unwrap();
    launches.buffers.iter().map(|buffer| words(&buffer.contents)).collect()
}

fn words(contents: &Contents<'_>) -> (usize, Vec<u32>) {
    let Contents::Uploaded(words) = contents else { panic!("{contents:?}") };
    let (storage, layout) = words.storage_and_layout();
    let Storage::Cpu(CpuStorage::U32(data)) = &*storage else { panic!("words") };
    (data[layout.start_offset()..].as_ptr().addr(), words.to_vec1().unwrap())
}

fn contents<'a>(listed: &Listed<'a>) -> [Contents<'a>; 3] {
    [Contents::Indices(listed.tables), Contents::Slots(listed.slots), Contents::Lengths(listed.rows)]
}

#[test]
fn launches_read_the_lists_of_a_step_where_they_were_uploaded() {
    let (backend, _) = launching(false);
    let mut step = Step::new(5);
    let (listed, lists) = step.list();
    let mut buffer = StepBuffer::new(lists.words().len(), &backend).unwrap();
    buffer.upload(&lists).unwrap();
    let on = buffer.run();
    let (rope, mut own) = (rope(), None);
    let table = rope.table(&on, &listed.positions, 3, 8, &mut own).unwrap();
    let found =
        read(&on, contents(&listed).into_iter().chain([Contents::Floats(table.cos), Contents::Floats(table.sin)]));
    let expected = rope.angles(&[5, 6, 0], 3).unwrap();
    let bits = |numbers: &[f32]| numbers.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
    let wanted = [
        vec![5, u32::MAX, 3, i32::MAX as u32, u32::MAX],
        vec![u32::MAX, u32::MAX, 7, 5 << 1, 5, 0],
        vec![5, 6, 0],
        bits(&expected.table().cos),
        bits(&expected.table().sin),
    ];
    assert_eq!(found.iter().map(|(_, words)| words.clone()).collect::<Vec<_>>(), wanted);
    assert_eq!(on.tensor(listed.rows).unwrap().to_vec1::<u32>().unwrap(), [5, 6, 0]);
    assert!(on.is_recordable());
    // Each list may be read as vectors.
    assert!(found.iter().all(|(address, _)| (address - found[0].0.min(*address)) % 16 == 0));
}

#[test]
fn addresses_are_the_same_in_every_step_of_the_same_lengths() {
    let (backend, _) = launching(false);
    let mut buffer = StepBuffer::new(64, &backend).unwrap();
    let mut read_step = |at: u32| {
        let mut step = Step::new(at);
        let (listed, lists) = step.list();
        buffer.upload(&lists).unwrap();
        read(&buffer.run(), contents(&listed))
    };
    let [first, second] = [read_step(5), read_step(90)];
    let addresses = |read: &[(usize, Vec<u32>)]| read.iter().map(|(address, _)| *address).collect::<Vec<_>>();
    assert_eq!(addresses(&first), addresses(&second));
    assert!(first.iter().zip(&second).all(|((_, before), (_, after))| before != after));
}

#[test]
fn a_step_that_is_recorded_reads_what_a_later_one_uploads() {
    let (backend, _) = launching(false);
    let (mut recorded, mut later) = (Step::new(5), Step::new(90));
    let ((old, _), (_, new)) = (recorded.list(), later.list());
    let mut buffer = StepBuffer::new(new.words().len(), &backend).unwrap();
    buffer.upload(&new).unwrap();
    assert_eq!(buffer.run().tensor(old.rows).unwrap().to_vec1::<u32>().unwrap(), [90, 91, 0]);
}

#[test]
fn what_only_the_host_knows_is_noted_and_parameters_of_an_op_are_not() {
    let (backend, _) = launching(false);
    let mut step = Step::new(5);
    let (listed, lists) = step.list();
    let mut buffer = StepBuffer::new(lists.words().len(), &backend).unwrap();
    buffer.upload(&lists).unwrap();
    let told_once = |contents: Contents<'_>| {
        let on = buffer.run();
        let mut launches = Launches { buffers: vec![Buffer { name: "", contents }], launches: Vec::new() };
        on.place(&mut launches).unwrap();
        on.is_recordable()
    };
    assert!(told_once(Contents::Indices(listed.tables)));
    assert!(told_once(Contents::Floats((&[0.5f32]).into())));
    assert!(told_once(Contents::Pairs(&[])));
    assert!(!told_once(Contents::Lengths((&[1u32, 2]).into())));
    assert!(!told_once(Contents::Pairs(&[(1, 2)])));
    let (on, other) = (buffer.run(), Rope::new(500.0, 8, &RopeScaling::None).unwrap());
    other.table(&on, &listed.positions, 3, 8, &mut None).unwrap();
    assert!(!on.is_recordable());
    // A step without a buffer has its lists on the host alone.
    let on = backend.run();
    assert_eq!(on.tensor(listed.rows).unwrap().to_vec1::<u32>().unwrap(), [5, 6, 0]);
    assert!(!on.is_recordable());
}

#[test]
fn more_words_than_there_is_room_for_are_refused() {
    let (backend, _) = launching(false);
    let mut step = Step::new(5);
    let (_, lists) = step.list();
    let words = lists.words().len();
    let error = StepBuffer::new(words - 1, &backend).unwrap().upload(&lists).unwrap_err().to_string();
    assert_eq!(error, format!("step buffer: {words} words, and room for {}", words - 1));
}

/// Ops without a kernel: rows alone leave a step as it is, while choices and sequences are read on the host.
#[rstest]
#[case::rows("elementwise::silu_product", true)]
#[case::choice("routing::route", false)]
#[case::sequences("conv1d::causal_conv1d", false)]
fn an_op_without_a_kernel_is_candles_unless_that_is_refused(#[case] op: &str, #[case] recordable: bool) {
    // Rows of a width that no kernel was made for.
    let x = Random::new(1).tensor(&[2, 6]);
    let view = StateLayerView::conv(42, 0, 8, 6);
    let compute = |on: &Run<'_>| match op {
        "elementwise::silu_product" => Rows(&x).silu_product(on),
        "routing::route" => {
            let routing = Routing::softmax(6, 2, true);
            let transposed = x.t().unwrap().contiguous().unwrap();
            routing.run(on, &transposed.t().unwrap(), None).map(|(_, shares)| shares)
        }
        _ => {
            let (weight, pool) = (Random::new(2).tensor(&[8, 6]), Random::new(3).tensor(&[1, 42]));
            CausalConv1d { weight: &weight, bias: None, silu: true }.run(
                on,
                &x,
                &pool,
                &view,
                &StateBatch::new(&[0, 2], &[0]),
            )
        }
    };
    let expected = values(&compute(&on_cpu()).unwrap());
    let (backend, launcher) = launching(false);
    let on = backend.run();
    assert_close(&values(&compute(&on).unwrap()), &expected, 1e-6);
    assert_eq!((launcher.left.lock().unwrap().as_slice(), on.is_recordable()), (&[op][..], recordable));
    assert_close(&values(&compute(&Backend::Candle(Device::Cpu).run()).unwrap()), &expected, 1e-6);
    let (backend, _) = launching(true);
    let error = compute(&backend.run()).unwrap_err().to_string();
    assert_eq!(error, format!("{op}: no kernel was made for these operands"));
}

#[test]
fn outputs_that_a_launcher_does_not_give_are_an_error() {
    let (backend, _) = launching(false);
    let error = Rows(&Random::new(1).tensor(&[2, 8])).silu_product(&backend.run()).unwrap_err().to_string();
    assert_eq!(error, "elementwise::silu_product: an output is missing");
}
