"""What detectors share: boxes, anchors, matching, non-maximum suppression, COCO's mAP.

A box is [ymin, xmin, ymax, xmax], float32, in fractions of the image's height and width
unless a function says pixels. COCO's own form, [x, y, width, height] in pixels, stays
at the edges: annotation files and the evaluator.
"""
