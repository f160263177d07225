package vision

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/excerpt"
	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/folder"
)

const (
	// processorFile is where processors are described, or, in newer folders,
	// the part imageSection of jointFile.
	processorFile  = "preprocessor_config.json"
	jointFile      = "processor_config.json"
	imageSection   = "image_processor"
	maxConfigBytes = 1 << 20
	// maxPixels bounds what a file may ask an image to be scaled to.
	maxPixels = 64 << 20
)

// settings are the keys of a processor's configuration that change its results.
// Values that are null or absent are the defaults of transformers (5.23).
type settings struct {
	Type string `json:"image_processor_type"`
	// Class is the name that older folders have instead.
	Class string `json:"feature_extractor_type"`

	Size struct {
		Width    *int `json:"width"`
		Height   *int `json:"height"`
		Shortest *int `json:"shortest_edge"`
		Longest  *int `json:"longest_edge"`
	} `json:"size"`
	MinPixels *int `json:"min_pixels"`
	MaxPixels *int `json:"max_pixels"`
	MaxTokens *int `json:"max_soft_tokens"`

	Patch    *int `json:"patch_size"`
	Merge    *int `json:"merge_size"`
	Pool     *int `json:"pooling_kernel_size"`
	Frames   *int `json:"temporal_patch_size"`
	Resample *int `json:"resample"`

	Rescale   *float64  `json:"rescale_factor"`
	Mean      []float64 `json:"image_mean"`
	Std       []float64 `json:"image_std"`
	Normalize *bool     `json:"do_normalize"`

	DoResize   *bool `json:"do_resize"`
	DoRescale  *bool `json:"do_rescale"`
	DoConvert  *bool `json:"do_convert_rgb"`
	DoCrop     *bool `json:"do_center_crop"`
	DoPad      *bool `json:"do_pad"`
	PanAndScan *bool `json:"do_pan_and_scan"`
}

// processors are the defaults of known processors, by their class without the suffix of
// its implementation.
func processors() map[string]Processor {
	half := [3]float64{0.5, 0.5, 0.5}
	clip, clipStd := [3]float64{0.48145466, 0.4578275, 0.40821073}, [3]float64{0.26862954, 0.26130258, 0.27577711}
	return map[string]Processor{
		"Qwen2VLImageProcessor": {Sizing: Bounded, MinPixels: 56 * 56, MaxPixels: 28 * 28 * 1280, Filter: Bicubic, Patch: 14, Merge: 2, Frames: 2, Mean: clip, Std: clipStd},
		"Gemma3ImageProcessor":  {Sizing: Fixed, Width: 224, Height: 224, Filter: Bilinear, Frames: 1, Mean: half, Std: half},
		"Gemma4ImageProcessor":  {Sizing: Filled, MaxTokens: 280, Filter: Bicubic, Patch: 16, Merge: 3, Frames: 1, ChannelsLast: true, Std: [3]float64{1, 1, 1}},
	}
}

// Read reads the processor of a model's folder. patch and merge are those of
// its tower (config.json): a processor that has its own must agree. Errors are those of
// folder and family.
func Read(f *folder.Folder, patch, merge int) (Processor, error) {
	s, file, err := read(f)
	if err != nil {
		return Processor{}, err
	}
	p, err := s.processor(patch, merge)
	if err != nil {
		return Processor{}, fmt.Errorf("%s: %w", file, err)
	}
	return p, nil
}

// read finds the settings.
func read(f *folder.Folder) (s settings, file string, err error) {
	err = f.JSON(processorFile, maxConfigBytes, &s)
	if err == nil || !errors.Is(err, folder.ErrMissing) {
		return s, processorFile, err
	}
	var joint map[string]json.RawMessage
	if err := f.JSON(jointFile, maxConfigBytes, &joint); err != nil {
		return s, jointFile, err
	}
	section, ok := joint[imageSection]
	if !ok {
		return s, jointFile, fmt.Errorf("%s: %s: %w", jointFile, imageSection, family.ErrMissing)
	}
	if err := json.Unmarshal(section, &s); err != nil {
		return s, jointFile, family.Invalidf("%s: %s: %v", jointFile, imageSection, excerpt.Error(err))
	}
	return s, jointFile, nil
}

func (s settings) processor(patch, merge int) (Processor, error) {
	name := s.Type
	if name == "" {
		name = s.Class
	}
	for _, suffix := range []string{"Fast", "Pil"} {
		name = strings.TrimSuffix(name, suffix)
	}
	p, ok := processors()[name]
	if !ok {
		return p, &family.UnsupportedError{Subject: "image processor", Value: family.Shown(name), Supported: slices.Sorted(maps.Keys(processors()))}
	}
	if err := s.unsupported(); err != nil {
		return p, err
	}
	if p.Patch == 0 { // the processor knows no patches
		p.Patch, p.Merge = patch, merge
	}
	for _, set := range []struct {
		to   *int
		from *int
	}{
		{&p.MinPixels, s.Size.Shortest}, {&p.MaxPixels, s.Size.Longest}, {&p.MinPixels, s.MinPixels}, {&p.MaxPixels, s.MaxPixels},
		{&p.Width, s.Size.Width}, {&p.Height, s.Size.Height}, {&p.MaxTokens, s.MaxTokens},
		{&p.Patch, s.Patch}, {&p.Merge, s.Merge}, {&p.Merge, s.Pool}, {&p.Frames, s.Frames}, {(*int)(&p.Filter), s.Resample},
	} {
		if set.from != nil {
			*set.to = *set.from
		}
	}
	p.Rescale = 1.0 / 255
	if s.Rescale != nil {
		p.Rescale = *s.Rescale
	}
	if err := s.normalization(&p); err != nil {
		return p, err
	}
	return p, p.consistent(patch, merge)
}

// unsupported refuses by name what would change the result.
func (s settings) unsupported() error {
	for _, f := range []struct {
		key  string
		v    *bool
		want bool
	}{
		{"do_resize", s.DoResize, true}, {"do_rescale", s.DoRescale, true}, {"do_convert_rgb", s.DoConvert, true},
		{"do_center_crop", s.DoCrop, false}, {"do_pad", s.DoPad, false}, {"do_pan_and_scan", s.PanAndScan, false},
	} {
		if f.v != nil && *f.v != f.want {
			return fmt.Errorf("%s: %w", f.key, &family.UnsupportedError{Subject: "value", Value: fmt.Sprint(*f.v), Supported: []string{fmt.Sprint(f.want)}})
		}
	}
	return nil
}

// normalization reads mean and standard deviation.
func (s settings) normalization(p *Processor) error {
	for _, v := range []struct {
		key  string
		list []float64
		to   *[3]float64
	}{{"image_mean", s.Mean, &p.Mean}, {"image_std", s.Std, &p.Std}} {
		if v.list == nil {
			continue
		}
		if len(v.list) != len(v.to) {
			return family.Invalidf("%s has %d numbers, want %d", v.key, len(v.list), len(v.to))
		}
		copy(v.to[:], v.list)
	}
	if s.Normalize != nil && !*s.Normalize {
		p.Mean, p.Std = [3]float64{}, [3]float64{1, 1, 1}
	}
	return nil
}

// maxSide bounds the sides of a fixed size: an image that is scaled to it has one side of
// its own meanwhile.
const maxSide = 4096

// consistent refuses numbers that no image can be prepared with.
func (p Processor) consistent(patch, merge int) error {
	block := p.Patch * p.Merge
	switch {
	case p.Filter != Bilinear && p.Filter != Bicubic:
		return fmt.Errorf("resample: %w", &family.UnsupportedError{Subject: "filter", Value: fmt.Sprint(int(p.Filter)), Supported: []string{"2 (bilinear)", "3 (bicubic)"}})
	case p.Patch != patch || p.Merge != merge:
		return family.Invalidf("patches of %d pixels in blocks of %d, but the vision tower in config.json has %d in blocks of %d", p.Patch, p.Merge, patch, merge)
	case p.Patch < 1 || p.Merge < 1 || p.Patch > 256 || p.Merge > 16 || p.Frames < 1 || p.Frames > 8:
		return family.Invalidf("patches of %d pixels in blocks of %d, %d frames", p.Patch, p.Merge, p.Frames)
	case p.Sizing == Fixed && (p.Width < block || p.Height < block || p.Width%block != 0 || p.Height%block != 0 || max(p.Width, p.Height) > maxSide || p.Width > maxPixels/p.Height):
		return family.Invalidf("size is %d x %d, want multiples of %d up to %d", p.Width, p.Height, block, maxSide)
	case p.Sizing == Bounded && (p.MinPixels < 1 || p.MaxPixels < max(p.MinPixels, block*block) || p.MaxPixels > maxPixels):
		return family.Invalidf("size allows %d to %d pixels, want %d to %d", p.MinPixels, p.MaxPixels, block*block, maxPixels)
	case p.Sizing == Filled && (p.MaxTokens < 1 || p.MaxTokens > maxPixels/block/block):
		return family.Invalidf("max_soft_tokens is %d, want 1 to %d", p.MaxTokens, maxPixels/block/block)
	case p.Rescale <= 0 || p.Rescale > 1 || slices.Min(p.Std[:]) <= 0:
		return family.Invalidf("rescale_factor is %v and image_std %v, want numbers above 0", p.Rescale, p.Std)
	}
	return nil
}
