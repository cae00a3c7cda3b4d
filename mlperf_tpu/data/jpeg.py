"""ImageNet's images: crops, decoded no further than the crop needs, and resized.

ImageNet holds one PNG and about twenty CMYK files, all named .JPEG (models#2519). The
fused decode-and-crop and the header's reader refuse a PNG, so it is decoded whole; the
CMYK and grey files go the fused way, which makes RGB of them.
"""

from __future__ import annotations

import struct

import tensorflow as tf

# The reference's training crop: google_submissions.md 3.4.
CROP_AREA = (0.08, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)
CROP_MIN_COVERED = 0.1
CROP_TRIES = 10
# Evaluation keeps 224 of 256 pixels: the crop leaves a border of 16 on each side.
EVAL_BORDER = 32


def training_crop(shape, seed):
    """(y, x, height, width) int32 [4] of a random crop of an image [h, w, channels]."""
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        seed,
        min_object_covered=CROP_MIN_COVERED,
        aspect_ratio_range=CROP_ASPECT,
        area_range=CROP_AREA,
        max_attempts=CROP_TRIES,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], extent[:2]], 0)


def centre_crop(shape, size: int):
    """(y, x, side, side) int32 [4]: the centre square of `size` pixels from an image
    whose shorter side would be `size` + 32."""
    short = tf.minimum(shape[0], shape[1])
    side = tf.cast(tf.cast(short, tf.float64) * (size / (size + EVAL_BORDER)), tf.int32)
    # A strip of one pixel is still an image.
    side = tf.maximum(side, 1)
    return tf.stack(
        [(shape[0] - side + 1) // 2, (shape[1] - side + 1) // 2, side, side]
    )


def cropped(encoded, crop_of):
    """uint8 [height, width, 3]: the crop that `crop_of(shape)` chooses of an encoded
    image, decoded alone where the file is a JPEG."""

    def fused():
        crop = crop_of(tf.image.extract_jpeg_shape(encoded))
        return tf.io.decode_and_crop_jpeg(encoded, crop, channels=3)

    def whole():
        image = decoded(encoded)
        return cut(image, crop_of(tf.shape(image)))

    return tf.cond(tf.io.is_jpeg(encoded), fused, whole)


def decoded(encoded):
    """uint8 [height, width, 3] of a JPEG (colour, grey or CMYK) or a PNG.

    Not by decode_image, whose inverse transform gives other pixels than the fused op.
    """
    return tf.io.decode_jpeg(encoded, channels=3)


def cut(image, crop):
    """The crop of a decoded image."""
    y, x, height, width = tf.unstack(crop)
    return image[y : y + height, x : x + width]


def resized(image, size: int, method: str):
    """uint8 [size, size, 3], rounded: half a level is half of bfloat16's step there.

    Pixels' corners, not their centres, are aligned, as by tf.image.resize_bicubic and
    resize_bilinear of TensorFlow 1, with which v0.6 and v0.7 ran.
    """
    op = {
        "bicubic": tf.raw_ops.ResizeBicubic,
        "bilinear": tf.raw_ops.ResizeBilinear,
    }[method]
    # The kernels give the same of float32 as of uint8, in half the time.
    pixels = op(images=tf.cast(image, tf.float32)[tf.newaxis], size=[size, size])[0]
    # Bicubic overshoots at edges.
    return tf.cast(tf.clip_by_value(tf.round(pixels), 0.0, 255.0), tf.uint8)


def kind(data: bytes) -> str:
    """What an encoded image is, by its header alone: "jpeg" for the usual one, else
    "grey", "cmyk", "png" or "unknown"; "cut" for a JPEG without its end.

    >>> kind(bytes.fromhex("ffd8ffc0000b080008000801011100ffd9"))
    'grey'
    """
    if not data.startswith(b"\xff\xd8\xff"):
        return "png" if data.startswith(b"\x89PNG") else "unknown"
    at = 2
    while at + 10 <= len(data):
        marker = data[at + 1]
        if data[at] != 0xFF:
            return "unknown"
        if marker == 0xFF:  # padding
            at += 1
        # A frame's header: all of C0 to CF but the tables DHT, JPG and DAC.
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            if data.rfind(b"\xff\xd9", -1024) < 0:
                return "cut"
            return {1: "grey", 3: "jpeg", 4: "cmyk"}.get(data[at + 9], "unknown")
        else:
            at += 2 + struct.unpack_from(">H", data, at + 2)[0]
    return "unknown"


def size(data: bytes) -> tuple[int, int] | None:
    """(height, width) in pixels by the header of a JPEG or a PNG; None if `data` holds
    neither, or ends before it.

    >>> size(bytes.fromhex("ffd8ffc0000b080008000901011100ffd9"))
    (8, 9)
    """
    if data.startswith(b"\x89PNG") and len(data) >= 24:
        width, height = struct.unpack_from(">II", data, 16)
        return height, width
    at = 2 if data.startswith(b"\xff\xd8") else len(data)
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return height, width
        else:
            at += 2 + struct.unpack_from(">H", data, at + 2)[0]
    return None
