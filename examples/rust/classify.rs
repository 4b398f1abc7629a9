// Handwritten digits classified in Rust without crates, by a model that was compiled ahead of time:
//
//     orthrus compile digits.onnx --emit library --dim N=1..32 --out digits
//     rustc --edition 2021 -O classify.rs -L native=digits/lib -l static=digits
//     ./classify images.bin
//
// images.bin: images of 8 x 8 floats, one behind the other. A line is printed for each.
use std::ffi::{c_char, c_int, CStr};

extern "C" {
    fn digits_infer(n: i64, image: *const f32, label: *mut i64, probability: *mut f32) -> c_int;
    fn digits_last_error() -> *const c_char;
    fn digits_release();
}

const PIXELS: usize = 64;
const CLASSES: usize = 10;

/// The class of each image, and the scores of all classes.
fn classify(pixels: &[f32]) -> Result<(Vec<i64>, Vec<f32>), String> {
    let images = pixels.len() / PIXELS;
    let (mut labels, mut scores) = (vec![0i64; images], vec![0f32; images * CLASSES]);
    // The pointers are to as many elements as digits.h says, and nothing of them is kept.
    let status =
        unsafe { digits_infer(images as i64, pixels.as_ptr(), labels.as_mut_ptr(), scores.as_mut_ptr()) };
    if status != 0 {
        let text = unsafe { CStr::from_ptr(digits_last_error()) };
        return Err(text.to_string_lossy().into_owned());
    }
    Ok((labels, scores))
}

fn main() -> Result<(), String> {
    let path = std::env::args().nth(1).ok_or("usage: classify IMAGES")?;
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let pixels: Vec<f32> =
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    let (labels, scores) = classify(&pixels)?;
    for (row, label) in scores.chunks(CLASSES).zip(&labels) {
        println!("{} {:e}", label, row[*label as usize]);
    }
    unsafe { digits_release() };
    Ok(())
}
