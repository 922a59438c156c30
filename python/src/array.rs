//! Integers of a step as arrays of other libraries, over our memory.
//!
//! An [`Array`] keeps the step alive that its numbers lie in, and every view made of it keeps the array. The next step
//! writes into fresh memory while one of them lives.

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use cacheplan_managers::book::StepMetadata;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};

/// Integers, in rows where there are two dimensions.
#[pyclass(frozen, sequence, module = "cacheplan")]
pub(crate) struct Array {
    /// Owns the memory behind `data`.
    _owner: Arc<StepMetadata>,
    data: Data,
    shape: Vec<usize>,
}

/// Where the numbers lie.
enum Data {
    I32(*const i32),
    I64(*const i64),
}

// SAFETY: the memory is that of the owner, which nobody changes while it is shared.
unsafe impl Send for Array {}
// SAFETY: as above; an array is only ever read.
unsafe impl Sync for Array {}

impl Array {
    pub(crate) fn i32(
        owner: &Arc<StepMetadata>,
        of: impl FnOnce(&StepMetadata) -> &[i32],
        columns: Option<usize>,
    ) -> Self {
        let numbers = of(owner);
        Self { shape: shape(numbers.len(), columns), data: Data::I32(numbers.as_ptr()), _owner: Arc::clone(owner) }
    }

    /// Lengths and positions, all far below 2^31.
    pub(crate) fn u32(owner: &Arc<StepMetadata>, of: impl FnOnce(&StepMetadata) -> &[u32]) -> Self {
        let numbers = of(owner);
        let data = Data::I32(numbers.as_ptr().cast());
        Self { shape: shape(numbers.len(), None), data, _owner: Arc::clone(owner) }
    }

    pub(crate) fn i64(owner: &Arc<StepMetadata>, of: impl FnOnce(&StepMetadata) -> &[i64]) -> Self {
        let numbers = of(owner);
        Self { shape: shape(numbers.len(), None), data: Data::I64(numbers.as_ptr()), _owner: Arc::clone(owner) }
    }

    fn len(&self) -> usize {
        self.shape.iter().product()
    }

    fn address(&self) -> *mut c_void {
        match self.data {
            Data::I32(data) => data.cast_mut().cast(),
            Data::I64(data) => data.cast_mut().cast(),
        }
    }

    fn bits(&self) -> u8 {
        match self.data {
            Data::I32(_) => 32,
            Data::I64(_) => 64,
        }
    }

    fn at(&self, index: usize) -> i64 {
        debug_assert!(index < self.len());
        match self.data {
            // SAFETY: `index` is below the length, and the owner keeps the memory.
            Data::I32(data) => i64::from(unsafe { *data.add(index) }),
            // SAFETY: as above.
            Data::I64(data) => unsafe { *data.add(index) },
        }
    }
}

fn shape(len: usize, columns: Option<usize>) -> Vec<usize> {
    match columns {
        None => vec![len],
        Some(0) => vec![0, 0],
        Some(columns) => vec![len / columns, columns],
    }
}

const CPU: i32 = 1;
const UNUSED: &CStr = c"dltensor";

#[pymethods]
impl Array {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// `int32` or `int64`.
    #[getter]
    fn dtype(&self) -> String {
        format!("int{}", self.bits())
    }

    /// What `numpy.asarray` reads, without a copy; the array is read-only.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        let order = if cfg!(target_endian = "little") { '<' } else { '>' };
        interface.set_item("version", 3)?;
        interface.set_item("shape", self.shape(py)?)?;
        interface.set_item("typestr", format!("{order}i{}", self.bits() / 8))?;
        interface.set_item("data", (self.address() as usize, true))?;
        Ok(interface)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (CPU, 0)
    }

    /// A DLPack capsule over the same memory. What is made of it must only be read.
    #[pyo3(signature = (**_options))]
    fn __dlpack__<'py>(slf: Bound<'py, Self>, _options: Option<Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        dlpack::capsule(slf)
    }

    fn __len__(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyAny>> {
        let rows = self.__len__();
        let at = if index < 0 { index + rows as isize } else { index };
        let at = usize::try_from(at).ok().filter(|at| *at < rows);
        let at = at.ok_or_else(|| PyIndexError::new_err(format!("index {index} of {rows}")))?;
        match self.shape.get(1) {
            None => Ok(self.at(at).into_pyobject(py)?.into_any()),
            Some(columns) => {
                let row: Vec<i64> = (at * columns..(at + 1) * columns).map(|at| self.at(at)).collect();
                Ok(row.into_pyobject(py)?.into_any())
            }
        }
    }

    /// A list, or a list of rows.
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let rows: PyResult<Vec<_>> = (0..self.__len__()).map(|row| self.__getitem__(py, row as isize)).collect();
        Ok(rows?.into_pyobject(py)?.into_any())
    }

    fn __repr__(&self) -> String {
        format!("<cacheplan.Array {} {:?}>", self.dtype(), self.shape)
    }
}

/// The exchange format of arrays between libraries: <https://dmlc.github.io/dlpack/latest/c_api.html>.
mod dlpack {
    use super::{Array, Bound, CPU, CStr, PyCapsule, PyResult, UNUSED, c_void};
    use pyo3::ffi;
    use pyo3::prelude::*;

    #[repr(C)]
    struct Tensor {
        data: *mut c_void,
        device_type: i32,
        device_id: i32,
        ndim: i32,
        code: u8,
        bits: u8,
        lanes: u16,
        shape: *mut i64,
        strides: *mut i64,
        byte_offset: u64,
    }

    #[repr(C)]
    struct Managed {
        tensor: Tensor,
        context: *mut c_void,
        deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    }

    /// What a tensor needs as long as it lives.
    struct Context {
        _array: Py<Array>,
        shape: Vec<i64>,
    }

    pub(super) fn capsule<'py>(array: Bound<'py, Array>) -> PyResult<Bound<'py, PyAny>> {
        let py = array.py();
        let of = array.get();
        let shape = of.shape.iter().map(|&size| size as i64).collect();
        let (data, bits) = (of.address(), of.bits());
        let mut context = Box::new(Context { shape, _array: array.unbind() });
        let tensor = Tensor {
            data,
            device_type: CPU,
            device_id: 0,
            ndim: context.shape.len() as i32,
            code: 0,
            bits,
            lanes: 1,
            shape: context.shape.as_mut_ptr(),
            // Rows one after the other.
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        };
        let managed = Managed { tensor, context: Box::into_raw(context).cast(), deleter: Some(delete) };
        let managed = Box::into_raw(Box::new(managed));
        // SAFETY: the name lives for ever, and the capsule or whoever takes the tensor out of it calls the deleter.
        unsafe {
            let capsule = ffi::PyCapsule_New(managed.cast(), UNUSED.as_ptr(), Some(drop_unused));
            if capsule.is_null() {
                delete(managed);
            }
            Ok(Bound::from_owned_ptr_or_err(py, capsule)?.cast_into::<PyCapsule>()?.into_any())
        }
    }

    /// # Safety
    /// `managed` comes from [`capsule`] and is deleted once.
    unsafe extern "C" fn delete(managed: *mut Managed) {
        // SAFETY: both were made by `Box::into_raw` above.
        let context = unsafe {
            let managed = Box::from_raw(managed);
            Box::from_raw(managed.context.cast::<Context>())
        };
        // A reference to a Python object is given up with the interpreter attached.
        Python::attach(|_| drop(context));
    }

    /// A capsule that nobody took the tensor out of still has its first name.
    unsafe extern "C" fn drop_unused(capsule: *mut ffi::PyObject) {
        // SAFETY: Python calls this with a capsule that it is about to free.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule, CStr::as_ptr(UNUSED)) == 1 {
                delete(ffi::PyCapsule_GetPointer(capsule, UNUSED.as_ptr()).cast());
            }
        }
    }
}
