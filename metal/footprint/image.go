package footprint

import "metalfleet.dev/metalfleet/api/model"

const (
	// MaxImagePixels is the largest image that is decoded, and pixelBytes what each of its
	// pixels takes meanwhile: 4 as PNG decodes them, and 3 as they are kept.
	MaxImagePixels = 25 << 20
	pixelBytes     = 7
	// HeldImages is the maximum size of the scaled images that requests hold, and
	// EncodedImages that of images which wait to be decoded.
	HeldImages, EncodedImages = 64 * MiB, 64 * MiB
	// receivedImages is for the message that encoded images come in. One is received at a
	// time (package server of the engine), and is meanwhile in memory twice: in one piece, and
	// in frames or as its images, which alone are counted elsewhere.
	receivedImages = EncodedImages
	// visionBytes is the width of the tower's values, and of the tokens that it returns.
	visionBytes = 4
	// imagesWaiting is how many images of the largest size have tokens at a time: one
	// of the oldest prompt, and one of a shorter prompt that may overtake it.
	imagesWaiting = 2
)

// tower is the memory of one layer of the vision tower for an image of this many patches: the
// engine waits for a layer before it starts the next. Kernels on Metal write no scores,
// because heads are filled up to a size that these have (family.Tower.AttendedSize): there
// it is the values of the layer alone. Without such kernels, scores of all heads exist at
// once, and as no mask hides any of them, MLX on a processor writes their softmax in place
// (Kernels.SoftmaxInPlace). Arrays of ref are mappings of powers of two bytes (TowerRounding):
// images of tiny models took up to 1.43 times the bytes of their values.
func (k Kernels) tower(f model.Facts, patches int64) amount {
	a := product(patches, f.VisionPatchElements, visionBytes, max(1, k.TowerRounding))
	switch {
	case k.ScoreRows > 0:
		a.add(k.ScoreRows, patches, k.ScoreBytes)
	case len(k.Fusions) == 0:
		copies := max(1, k.ScoreCopies)
		if k.SoftmaxInPlace {
			copies = 1
		}
		a.add(f.VisionHeads, patches, patches, k.ScoreBytes, copies)
	}
	return a
}

// imagesHeld is the memory of image input other than the tower's.
func imagesHeld(f model.Facts) amount {
	if !f.Sees() {
		return amount{}
	}
	a := product(MaxImagePixels, pixelBytes)
	a.add(HeldImages + EncodedImages + receivedImages)
	a.add(imagesWaiting, f.VisionElements, visionBytes)
	return a
}

// ImagePeak is the memory in bytes that an image of this many patches needs on its way
// through the vision tower, in addition to what is in use. It returns an error wrapping
// model.ErrIncomplete if a dimension is unknown.
func ImagePeak(f model.Facts, k Kernels, patches int64) (int64, error) {
	a := k.tower(f, patches)
	a.add(f.VisionElements, visionBytes, max(1, k.TowerRounding))
	return a.bytes, check("an image", patches, a)
}
