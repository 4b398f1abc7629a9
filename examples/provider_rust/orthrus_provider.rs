//! `orthrus_provider.h` in Rust: the same structures, field by field. See there for what they mean.
#![allow(dead_code)]

use std::ffi::{c_char, c_void};

pub const ABI: u32 = 1;
pub const JOIN: i32 = -1;
pub const OK: i32 = 0;
pub const FAIL: i32 = 1;
pub const INVALID_ARGUMENT: i32 = 2;
pub const NOT_IMPLEMENTED: i32 = 9;
pub const EP_FAIL: i32 = 11;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DLDevice {
    pub device_type: i32,
    pub device_id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DLDataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

#[repr(C)]
pub struct DLTensor {
    pub data: *mut c_void,
    pub device: DLDevice,
    pub ndim: i32,
    pub dtype: DLDataType,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

#[repr(C)]
pub struct DLManagedTensorVersioned {
    pub version: [u32; 2],
    pub manager_ctx: *mut c_void,
    pub deleter: Option<extern "C" fn(*mut DLManagedTensorVersioned)>,
    pub flags: u64,
    pub dl_tensor: DLTensor,
}

#[repr(C)]
pub struct Error {
    pub size: usize,
    pub node: i32,
    pub text: [u8; 1012],
}

#[repr(C)]
pub struct Value {
    pub name: *const c_char,
    pub element_type: i32,
    pub rank: i32,
    pub dims: *const i64,
    pub dim_names: *const *const c_char,
    pub constant: i32,
    pub bytes: usize,
    pub data: *const c_void,
}

#[repr(C)]
pub struct Attribute {
    pub name: *const c_char,
    pub kind: i32,
    pub count: usize,
    pub floats: *const f32,
    pub ints: *const i64,
    pub strings: *const *const c_char,
    pub string_bytes: *const usize,
    pub tensor: *const Value,
}

#[repr(C)]
pub struct Node {
    pub op_type: *const c_char,
    pub domain: *const c_char,
    pub name: *const c_char,
    pub label: *const c_char,
    pub version: i32,
    pub free: i32,
    pub inputs: *const i32,
    pub input_count: usize,
    pub outputs: *const i32,
    pub output_count: usize,
    pub attributes: *const Attribute,
    pub attribute_count: usize,
}

#[repr(C)]
pub struct Graph {
    pub size: usize,
    pub nodes: *const Node,
    pub node_count: usize,
    pub values: *const Value,
    pub value_count: usize,
    pub inputs: *const i32,
    pub input_count: usize,
    pub outputs: *const i32,
    pub output_count: usize,
}

#[repr(C)]
pub struct Claims {
    pub size: usize,
    pub take: extern "C" fn(*const Claims, usize, i32),
    pub refuse: extern "C" fn(*const Claims, usize, *const c_char),
}

#[repr(C)]
pub struct Session {
    pub size: usize,
    pub threads: i32,
}

#[repr(C)]
pub struct Kernel {
    pub size: usize,
    pub handle: *mut c_void,
    pub name: [u8; 248],
}

#[repr(C)]
pub struct Output {
    pub tensor: DLTensor,
    pub made: *mut DLManagedTensorVersioned,
}

#[repr(C)]
pub struct Setting {
    pub name: *const c_char,
    pub value: *const c_char,
}

#[repr(C)]
pub struct ProviderOption {
    pub name: *const c_char,
    pub default_value: *const c_char,
    pub meaning: *const c_char,
}

#[repr(C)]
pub struct Device {
    pub kind: i32,
    pub vendor_id: u32,
    pub device_id: u32,
    pub vendor: *const c_char,
}

pub type Status = i32;

#[repr(C)]
pub struct Provider {
    pub size: usize,
    pub name: *const c_char,
    pub vendor: *const c_char,
    pub version: *const c_char,
    pub devices: *const Device,
    pub device_count: usize,
    pub options: *const ProviderOption,
    pub option_count: usize,
    pub probe: Option<extern "C" fn(*mut Error) -> Status>,
    pub create: Option<extern "C" fn(*const Setting, usize, *mut *mut c_void, *mut Error) -> Status>,
    pub destroy: Option<extern "C" fn(*mut c_void)>,
    pub claim: extern "C" fn(*mut c_void, *const Graph, *const Claims, *mut Error) -> Status,
    pub compile: extern "C" fn(*mut c_void, *const Graph, *const Session, *mut Kernel, *mut Error) -> Status,
    pub run: extern "C" fn(*mut c_void, *const DLTensor, usize, *mut Output, usize, *mut Error) -> Status,
    pub release: extern "C" fn(*mut c_void),
}

#[repr(C)]
pub struct Library {
    pub abi: u32,
    pub providers: *const *const Provider,
    pub provider_count: usize,
}
