//! An execution provider in Rust: Add, Mul, Relu and MatMul of float32, connected nodes as one part.
//!
//!     rustc --edition 2021 -O --crate-type cdylib provider.rs -o libexample_rust.so

mod orthrus_provider;

use orthrus_provider as abi;
use std::ffi::{c_void, CStr};
use std::{ptr, slice};

const FLOAT: i32 = 1;

#[derive(Clone, Copy, PartialEq)]
enum Op { Add, Mul, Relu, MatMul }

struct Step { op: Op, a: usize, b: usize, result: usize }

/// Values by their numbers; a constant has its array already.
struct Kernel { steps: Vec<Step>, constants: Vec<Option<Array>>, inputs: Vec<usize>, outputs: Vec<usize> }

#[derive(Clone)]
struct Array { dims: Vec<usize>, items: Vec<f32> }

/// What lies behind a pointer of C's and a count.
unsafe fn rows<'a, T>(first: *const T, count: usize) -> &'a [T] {
    if count == 0 { &[] } else { slice::from_raw_parts(first, count) }
}

unsafe fn array(data: *const c_void, dims: &[i64]) -> Array {
    let dims: Vec<usize> = dims.iter().map(|&d| d as usize).collect();
    Array { items: rows(data as *const f32, dims.iter().product()).to_vec(), dims }
}

unsafe fn op_of(graph: &abi::Graph, node: &abi::Node) -> Result<Op, &'static CStr> {
    let op = match CStr::from_ptr(node.op_type).to_bytes() {
        b"Add" if node.version >= 7 => Op::Add,
        b"Mul" if node.version >= 7 => Op::Mul,
        b"Relu" => Op::Relu,
        b"MatMul" => Op::MatMul,
        _ => return Err(c"it is none of Add, Mul, Relu, MatMul"),
    };
    let values = rows(graph.values, graph.value_count);
    for &number in rows(node.inputs, node.input_count) {
        let value = &values[number as usize];
        if value.element_type != FLOAT {
            return Err(c"not all of its tensors are float32");
        }
        if value.rank < if op == Op::MatMul { 2 } else { 0 } {
            return Err(c"the rank of a tensor is not known, or too small");
        }
    }
    if CStr::from_ptr(node.domain).is_empty() { Ok(op) } else { Err(c"it is no operator of ONNX's own") }
}

extern "C" fn claim(_: *mut c_void, graph: *const abi::Graph, claims: *const abi::Claims,
                    _: *mut abi::Error) -> i32 {
    unsafe {
        let graph = &*graph;
        for (i, node) in rows(graph.nodes, graph.node_count).iter().enumerate() {
            match op_of(graph, node) {
                _ if node.free == 0 => (),
                Ok(_) => ((*claims).take)(claims, i, abi::JOIN),
                Err(why) => ((*claims).refuse)(claims, i, why.as_ptr()),
            }
        }
    }
    abi::OK
}

extern "C" fn compile(_: *mut c_void, part: *const abi::Graph, _: *const abi::Session, made: *mut abi::Kernel,
                      error: *mut abi::Error) -> i32 {
    unsafe {
        let part = &*part;
        let numbers = |first, count| -> Vec<usize> {
            rows(first, count).iter().map(|&n: &i32| n as usize).collect()
        };
        let mut steps = Vec::new();
        for (i, node) in rows(part.nodes, part.node_count).iter().enumerate() {
            let Ok(op) = op_of(part, node) else {
                return fail(error, i, "it was never claimed");
            };
            let inputs = numbers(node.inputs, node.input_count);
            let result = *node.outputs as usize;
            steps.push(Step { op, a: inputs[0], b: inputs[inputs.len() - 1], result });
        }
        let constants = rows(part.values, part.value_count).iter().map(|v| {
            (v.constant != 0).then(|| array(v.data, rows(v.dims, v.rank as usize)))
        });
        let kernel = Kernel {
            steps, constants: constants.collect(), inputs: numbers(part.inputs, part.input_count),
            outputs: numbers(part.outputs, part.output_count),
        };
        (*made).handle = Box::into_raw(Box::new(kernel)) as *mut c_void;
    }
    abi::OK
}

extern "C" fn release(handle: *mut c_void) {
    drop(unsafe { Box::from_raw(handle as *mut Kernel) });
}

/// The shape that two broadcast to; None where they do not fit.
fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    (0..rank).map(|i| {
        let of = |dims: &[usize]| if i + dims.len() < rank { 1 } else { dims[i + dims.len() - rank] };
        match (of(a), of(b)) { (m, n) if m == n || n == 1 => Some(m), (1, n) => Some(n), _ => None }
    }).collect()
}

/// Where the item `i` of shape `y` lies in an array of shape `x` that is broadcast to it.
fn place(x: &[usize], y: &[usize], mut i: usize) -> usize {
    let (mut at, mut step) = (0, 1);
    for (axis, n) in y.iter().enumerate().rev() {
        let m = if axis + x.len() < y.len() { 1 } else { x[axis + x.len() - y.len()] };
        at += if m > 1 { i % n * step } else { 0 };
        (i, step) = (i / n, step * m);
    }
    at
}

fn compute(op: Op, a: &Array, b: &Array) -> Option<Array> {
    if op == Op::MatMul {
        return product(a, b);
    }
    let dims = broadcast(&a.dims, &b.dims)?;
    let items = (0..dims.iter().product()).map(|i| {
        let (p, q) = (a.items[place(&a.dims, &dims, i)], b.items[place(&b.dims, &dims, i)]);
        match op { Op::Add => p + q, Op::Mul => p * q, _ => if p < 0.0 { 0.0 } else { p } }
    }).collect();
    Some(Array { dims, items })
}

fn product(a: &Array, b: &Array) -> Option<Array> {
    let (before, matrix) = a.dims.split_at(a.dims.len() - 2);
    let (below, other) = b.dims.split_at(b.dims.len() - 2);
    let (rows, depth, columns) = (matrix[0], matrix[1], other[1]);
    let mut dims = broadcast(before, below).filter(|_| depth == other[0])?;
    let mut items = Vec::new();
    for i in 0..dims.iter().product() {
        let (p, q) = (place(before, &dims, i) * rows * depth, place(below, &dims, i) * depth * columns);
        for (m, n) in (0..rows).flat_map(|m| (0..columns).map(move |n| (m, n))) {
            items.push((0..depth).map(|k| a.items[p + m * depth + k] * b.items[q + k * columns + n]).sum());
        }
    }
    dims.extend([rows, columns]);
    Some(Array { dims, items })
}

unsafe fn fail(error: *mut abi::Error, node: usize, text: &str) -> i32 {
    (*error).node = node as i32;
    (&mut (*error).text)[..text.len()].copy_from_slice(text.as_bytes());
    abi::INVALID_ARGUMENT
}

extern "C" fn run(handle: *mut c_void, inputs: *const abi::DLTensor, input_count: usize,
                  outputs: *mut abi::Output, output_count: usize, error: *mut abi::Error) -> i32 {
    unsafe {
        let kernel = &*(handle as *const Kernel);
        let mut made: Vec<Option<Array>> = kernel.constants.iter().map(|_| None).collect();
        for (&number, tensor) in kernel.inputs.iter().zip(rows(inputs, input_count)) {
            made[number] = Some(array(tensor.data, rows(tensor.shape, tensor.ndim as usize)));
        }
        for (i, step) in kernel.steps.iter().enumerate() {
            let value = |number: usize| made[number].as_ref().or(kernel.constants[number].as_ref());
            let (Some(a), Some(b)) = (value(step.a), value(step.b)) else {
                return fail(error, i, "it has no input");
            };
            let Some(result) = compute(step.op, a, b) else {
                return fail(error, i, "the shapes of its inputs do not fit together");
            };
            made[step.result] = Some(result);
        }
        for (i, &number) in kernel.outputs.iter().enumerate().take(output_count) {
            give(&mut *outputs.add(i), made[number].take().expect("a result of a step"));
        }
    }
    abi::OK
}

/// What a managed tensor of ours refers to.
struct Kept { shape: Vec<i64>, items: Vec<f32> }

/// Write a result where there is room for it, else hand it over.
unsafe fn give(output: &mut abi::Output, result: Array) {
    let shape: Vec<i64> = result.dims.iter().map(|&d| d as i64).collect();
    let room = &output.tensor;
    if !room.data.is_null() && rows(room.shape, room.ndim as usize) == shape {
        ptr::copy_nonoverlapping(result.items.as_ptr(), room.data as *mut f32, result.items.len());
        return;
    }
    let mut kept = Box::new(Kept { shape, items: result.items });
    let dl_tensor = abi::DLTensor {
        data: kept.items.as_mut_ptr() as *mut c_void, device: abi::DLDevice { device_type: 1, device_id: 0 },
        ndim: kept.shape.len() as i32, dtype: abi::DLDataType { code: 2, bits: 32, lanes: 1 },
        shape: kept.shape.as_mut_ptr(), strides: ptr::null_mut(), byte_offset: 0,
    };
    output.made = Box::into_raw(Box::new(abi::DLManagedTensorVersioned {
        version: [1, 0], manager_ctx: Box::into_raw(kept) as *mut c_void, deleter: Some(dropped), flags: 0,
        dl_tensor,
    }));
}

extern "C" fn dropped(tensor: *mut abi::DLManagedTensorVersioned) {
    unsafe {
        let tensor = Box::from_raw(tensor);
        drop(Box::from_raw(tensor.manager_ctx as *mut Kept));
    }
}

/// The pointers in here are to what is never changed.
struct Shared<T>(T);
unsafe impl<T> Sync for Shared<T> {}

static PROVIDER: Shared<abi::Provider> = Shared(abi::Provider {
    size: std::mem::size_of::<abi::Provider>(), name: c"RustExecutionProvider".as_ptr(),
    vendor: c"Example".as_ptr(), version: c"1.0".as_ptr(), devices: ptr::null(), device_count: 0,
    options: ptr::null(), option_count: 0, probe: None, create: None, destroy: None, claim, compile, run,
    release,
});
static PROVIDERS: Shared<[*const abi::Provider; 1]> = Shared([&PROVIDER.0]);
static LIBRARY: Shared<abi::Library> =
    Shared(abi::Library { abi: abi::ABI, providers: PROVIDERS.0.as_ptr(), provider_count: 1 });

#[no_mangle]
pub extern "C" fn orthrus_provider_library(version: u32) -> *const abi::Library {
    if version == abi::ABI { &LIBRARY.0 } else { ptr::null() }
}
