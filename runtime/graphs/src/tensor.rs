//! Numbers of a tensor, with the layout they lie in.

use std::sync::Arc;

use half::{bf16, f16};

use crate::layout::Layout;
use crate::nest::gathered;

/// What a tensor is made of. Whole numbers of all widths are `i64`, and truth values are 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// `f32`.
    Float,
    /// `f16`, which is computed with as `f32`.
    Half,
    /// `bf16`, likewise.
    Brain,
    /// `i64`, and what is narrower.
    Int,
}

impl Element {
    /// Whether it is no whole number.
    pub fn is_float(self) -> bool {
        self != Self::Int
    }
}

/// The numbers of a tensor that is made: of 16 bits are only those that a run is given.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Data {
    Float(Vec<f32>),
    Int(Vec<i64>),
}

/// The numbers of a tensor, lent.
#[derive(Clone, Copy, Debug)]
pub enum Slice<'a> {
    /// `f32`.
    Float(&'a [f32]),
    /// `f16`.
    Half(&'a [f16]),
    /// `bf16`.
    Brain(&'a [bf16]),
    /// `i64`.
    Int(&'a [i64]),
}

/// A tensor of a program: where its numbers are, and how they lie there.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) place: Source,
    pub(crate) element: Element,
    pub(crate) layout: Layout,
}

#[derive(Clone, Debug)]
pub(crate) enum Source {
    Constant(Arc<Data>),
    /// The graph's input of that number.
    Input(usize),
    /// What a step makes.
    Buffer(usize),
}

/// A tensor that a run gave.
#[derive(Clone, Debug)]
pub struct View<'a> {
    pub(crate) data: Slice<'a>,
    pub(crate) layout: Layout,
    /// What the graph says that it is made of.
    pub(crate) element: Element,
}

impl Data {
    pub(crate) const fn empty(element: Element) -> Self {
        match element {
            Element::Float | Element::Half | Element::Brain => Self::Float(Vec::new()),
            Element::Int => Self::Int(Vec::new()),
        }
    }

    pub(crate) fn zeros(element: Element, len: usize) -> Result<Self, String> {
        let mut data = Self::empty(element);
        data.reserve(len)?;
        data.resize(len);
        Ok(data)
    }

    /// Makes room for `len` numbers.
    pub(crate) fn reserve(&mut self, len: usize) -> Result<(), String> {
        let reserved = match self {
            Self::Float(data) => data.try_reserve_exact(len.saturating_sub(data.len())),
            Self::Int(data) => data.try_reserve_exact(len.saturating_sub(data.len())),
        };
        reserved.map_err(|_| format!("there is no memory for {len} numbers"))
    }

    /// As many numbers as that; what they are is not said.
    pub(crate) fn resize(&mut self, len: usize) {
        match self {
            Self::Float(data) => data.resize(len, 0.0),
            Self::Int(data) => data.resize(len, 0),
        }
    }

    pub(crate) fn element(&self) -> Element {
        match self {
            Self::Float(_) => Element::Float,
            Self::Int(_) => Element::Int,
        }
    }

    pub(crate) fn slice(&self) -> Slice<'_> {
        match self {
            Self::Float(data) => Slice::Float(data),
            Self::Int(data) => Slice::Int(data),
        }
    }
}

impl Slice<'_> {
    /// Which of them it is.
    pub fn element(&self) -> Element {
        match self {
            Self::Float(_) => Element::Float,
            Self::Half(_) => Element::Half,
            Self::Brain(_) => Element::Brain,
            Self::Int(_) => Element::Int,
        }
    }

    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Self::Float(data) => data.len(),
            Self::Half(data) => data.len(),
            Self::Brain(data) => data.len(),
            Self::Int(data) => data.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Value {
    pub(crate) fn constant(data: Data, shape: Vec<usize>) -> Self {
        let element = data.element();
        Self { place: Source::Constant(Arc::new(data)), element, layout: Layout::contiguous(shape) }
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.layout.shape
    }

    pub(crate) fn with(&self, layout: Layout) -> Self {
        Self { place: self.place.clone(), element: self.element, layout }
    }
}

/// What a kernel reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand<'a> {
    pub(crate) data: Slice<'a>,
    pub(crate) layout: &'a Layout,
}

impl<'a> Operand<'a> {
    pub(crate) fn floats(&self) -> Result<&'a [f32], String> {
        match self.data {
            Slice::Float(data) => Ok(data),
            _ => Err("numbers of another type, where those of f32 were expected".to_owned()),
        }
    }

    pub(crate) fn ints(&self) -> Result<&'a [i64], String> {
        match self.data {
            Slice::Int(data) => Ok(data),
            _ => Err("numbers that are not whole, where whole ones were expected".to_owned()),
        }
    }

    /// All of it, row by row.
    pub(crate) fn gathered(&self) -> Result<Vec<f32>, String> {
        widened(self.layout, self.data).ok_or_else(|| "whole numbers, where others were expected".to_owned())
    }

    /// All of it, where it lies row by row.
    pub(crate) fn rows(&self) -> Result<&'a [f32], String> {
        Ok(&self.floats()?[self.layout.offset..][..self.layout.len()])
    }
}

impl View<'_> {
    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        &self.layout.shape
    }

    /// The part of it from `start` on, `len` long, along an axis; `None` where it does not have that.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Option<Self> {
        let size = *self.layout.shape.get(axis)?;
        (start.checked_add(len)? <= size).then(|| Self {
            data: self.data,
            layout: self.layout.narrow(axis, start, len),
            element: self.element,
        })
    }

    /// Its numbers row by row, rounded to what the graph says that they are; `None` where they are whole numbers.
    pub fn floats(&self) -> Option<Vec<f32>> {
        let mut values = widened(&self.layout, self.data)?;
        match self.element {
            Element::Half => values.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32()),
            Element::Brain => values.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32()),
            Element::Float | Element::Int => {}
        }
        Some(values)
    }
}

/// The elements of a layout, row by row, as `f32`; `None` where they are whole numbers.
fn widened(layout: &Layout, data: Slice<'_>) -> Option<Vec<f32>> {
    match data {
        Slice::Float(data) => Some(gathered(layout, data)),
        Slice::Half(data) => Some(gathered(layout, data).into_iter().map(f16::to_f32).collect()),
        Slice::Brain(data) => Some(gathered(layout, data).into_iter().map(bf16::to_f32).collect()),
        Slice::Int(_) => None,
    }
}
