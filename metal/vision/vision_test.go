//go:build !race

package vision_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/folder"
	"metalfleet.dev/metalfleet/metal/vision"
)

// maxJPEGError is the largest difference from libjpeg-turbo in any channel: its
// inverse transform rounds differently from Go's.
const maxJPEGError = 3

// recorded is what test/oracle/goldens/vision wrote.
type recorded struct {
	Images map[string]struct {
		Width, Height int
		SHA256        string
	}
	Processors []struct {
		Name         string
		Patch, Merge int
		Config       map[string]any
		Results      map[string]struct {
			Error  string
			Grid   [2]int
			Width  int
			SHA256 string
			Sample []float64
		}
	}
}

func record(t *testing.T) (r recorded) {
	t.Helper()
	if err := json.Unmarshal(file(t, "record.json"), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func file(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func decode(t *testing.T, name string) *vision.RGB {
	t.Helper()
	m, err := vision.Decode(t.Context(), file(t, name), vision.DefaultLimits())
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return m
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func TestImagesAreDecodedAsPillowDecodesThem(t *testing.T) {
	images := record(t).Images
	if len(images) < 30 {
		t.Fatalf("the record has %d images", len(images))
	}
	for name, want := range images {
		t.Run(name, func(t *testing.T) {
			m := decode(t, name)
			if m.Width != want.Width || m.Height != want.Height {
				t.Fatalf("%d x %d pixels, want %d x %d", m.Width, m.Height, want.Width, want.Height)
			}
			if w, h, err := vision.Size(file(t, name), vision.DefaultLimits()); err != nil || w != m.Width || h != m.Height {
				t.Errorf("the header states %d x %d (%v), but the image has %d x %d", w, h, err, m.Width, m.Height)
			}
			if strings.HasSuffix(name, ".jpg") {
				if off := difference(t, m, decode(t, name+".png")); off > maxJPEGError {
					t.Errorf("differs by up to %d, want at most %d", off, maxJPEGError)
				}
			} else if digest(m.Pix) != want.SHA256 {
				t.Errorf("other pixels than Pillow's")
			}
		})
	}
}

// difference is the largest one in any channel of any pixel.
func difference(t *testing.T, a, b *vision.RGB) (most int) {
	t.Helper()
	if len(a.Pix) != len(b.Pix) {
		t.Fatalf("%d and %d bytes", len(a.Pix), len(b.Pix))
	}
	sum := 0
	for i, v := range a.Pix {
		d := int(v) - int(b.Pix[i])
		most, sum = max(most, d, -d), sum+max(d, -d)
	}
	t.Logf("differs by %d at most, %.4f on average", most, float64(sum)/float64(len(a.Pix)))
	return most
}

func TestPatchesAreThoseOfTheReferenceProcessors(t *testing.T) {
	cases := record(t).Processors
	if len(cases) < 6 {
		t.Fatalf("the record has %d processors", len(cases))
	}
	for _, c := range cases {
		p, err := processor(t, c.Config, c.Patch, c.Merge)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		for name, want := range c.Results {
			t.Run(c.Name+"/"+name, func(t *testing.T) {
				m := decode(t, name)
				got, err := p.Prepare(m)
				if want.Error != "" {
					if !errors.Is(err, vision.ErrShape) {
						t.Errorf("error %v, want %v as the reference: %s", err, vision.ErrShape, want.Error)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if got.Rows != want.Grid[0] || got.Columns != want.Grid[1] || got.Width != want.Width {
					t.Fatalf("%d x %d patches of %d, want %v of %d", got.Rows, got.Columns, got.Width, want.Grid, want.Width)
				}
				if tokens, err := p.Tokens(m.Width, m.Height); err != nil || tokens*c.Merge*c.Merge != got.Rows*got.Columns {
					t.Errorf("%d tokens (%v) of %d patches", tokens, err, got.Rows*got.Columns)
				}
				raw, _ := binary.Append(nil, binary.LittleEndian, got.Values)
				if digest(raw) != want.SHA256 {
					step := len(got.Values) / 7
					for i, v := range want.Sample {
						t.Logf("value %d is %v, want %v", i*step, got.Values[i*step], v)
					}
					t.Error("other values than the reference's")
				}
			})
		}
	}
}

// processor reads a configuration from a folder.
func processor(t *testing.T, config map[string]any, patch, merge int) (vision.Processor, error) {
	t.Helper()
	raw, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, map[string]string{"preprocessor_config.json": string(raw)}, patch, merge)
}

func read(t *testing.T, files map[string]string, patch, merge int) (vision.Processor, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := folder.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return vision.Read(f, patch, merge)
}

func TestAProcessorMayLieInTheConfigurationOfAll(t *testing.T) {
	p, err := read(t, map[string]string{"processor_config.json": `{"image_processor": {"image_processor_type": "Gemma4ImageProcessor"}, "processor_class": "Gemma4Processor"}`}, 16, 3)
	if err != nil || p.Sizing != vision.Filled || p.MaxTokens != 280 {
		t.Errorf("%+v (%v), want the defaults of Gemma 4", p, err)
	}
}

func TestProcessorsThatWouldChangeTheResultAreRefusedByName(t *testing.T) {
	const gemma = `"image_processor_type": "Gemma3ImageProcessor", "size": {"width": 56, "height": 56}`
	for name, c := range map[string]struct {
		config string
		want   error
		names  string
	}{
		"another processor":     {`{"image_processor_type": "CLIPImageProcessor"}`, family.ErrUnsupported, "CLIPImageProcessor"},
		"no processor":          {`{}`, family.ErrUnsupported, "image processor"},
		"no resize":             {`{` + gemma + `, "do_resize": false}`, family.ErrUnsupported, "do_resize"},
		"a crop":                {`{` + gemma + `, "do_center_crop": true}`, family.ErrUnsupported, "do_center_crop"},
		"crops of long images":  {`{` + gemma + `, "do_pan_and_scan": true}`, family.ErrUnsupported, "do_pan_and_scan"},
		"another filter":        {`{` + gemma + `, "resample": 1}`, family.ErrUnsupported, "resample"},
		"patches of no tower":   {`{"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16}`, family.ErrInvalid, "16"},
		"an odd size":           {`{"image_processor_type": "Gemma3ImageProcessor", "size": {"width": 50, "height": 56}}`, family.ErrInvalid, "50"},
		"a huge size":           {`{"image_processor_type": "Gemma3ImageProcessor", "size": {"width": 1400000, "height": 1400000}}`, family.ErrInvalid, "1400000"},
		"a long side":           {`{"image_processor_type": "Gemma3ImageProcessor", "size": {"width": 5600, "height": 56}}`, family.ErrInvalid, "5600"},
		"no pixels":             {`{"image_processor_type": "Qwen2VLImageProcessor", "max_pixels": 1}`, family.ErrInvalid, "pixels"},
		"a mean of two colours": {`{` + gemma + `, "image_mean": [1, 2]}`, family.ErrInvalid, "image_mean"},
		"no deviation":          {`{` + gemma + `, "image_std": [1, 0, 1]}`, family.ErrInvalid, "image_std"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(t, map[string]string{"preprocessor_config.json": c.config}, 14, 2)
			if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.names) {
				t.Errorf("error %v, want %v with %s", err, c.want, c.names)
			}
		})
	}
	if _, err := read(t, nil, 14, 2); !errors.Is(err, folder.ErrMissing) {
		t.Errorf("without a file: error %v, want %v", err, folder.ErrMissing)
	}
}

// pngOf is the header of a PNG that states a size.
func pngOf(width, height uint32) []byte {
	out := []byte("\x89PNG\r\n\x1a\n")
	body := binary.BigEndian.AppendUint32([]byte("IHDR"), width)
	body = append(binary.BigEndian.AppendUint32(body, height), 8, 2, 0, 0, 0)
	out = append(binary.BigEndian.AppendUint32(out, 13), body...)
	return binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(body))
}

func TestImagesBeyondTheLimitsAreRefusedByTheirHeaders(t *testing.T) {
	small := vision.Limits{Bytes: 10_000, Pixels: 2000, Side: 100}
	for name, c := range map[string]struct {
		data []byte
		want error
	}{
		"too many bytes":                {make([]byte, 10_001), vision.ErrTooLarge},
		"a bomb of PNG":                 {pngOf(1<<20, 1<<20), vision.ErrTooLarge},
		"sizes that overflow":           {pngOf(1<<31-1, 1<<31-1), vision.ErrCorrupt},
		"a long PNG":                    {pngOf(101, 1), vision.ErrTooLarge},
		"many pixels of PNG":            {pngOf(50, 41), vision.ErrTooLarge},
		"many pixels of GIF":            {file(t, "still.gif"), vision.ErrTooLarge},
		"many pixels of JPEG":           {file(t, "420.jpg"), vision.ErrTooLarge},
		"many pixels of WebP":           {file(t, "lossy.webp"), vision.ErrTooLarge},
		"many pixels of lossless WebP":  {file(t, "lossless.webp"), vision.ErrTooLarge},
		"no pixel":                      {pngOf(0, 1), vision.ErrCorrupt},
		"a PNG without pixels":          {pngOf(10, 10), vision.ErrCorrupt},
		"half a PNG":                    {file(t, "color.png")[:500], vision.ErrTooLarge},
		"text":                          {[]byte("<svg/>"), vision.ErrFormat},
		"nothing":                       {nil, vision.ErrFormat},
		"a RIFF of sound":               {[]byte("RIFF\x04\x00\x00\x00WAVE"), vision.ErrFormat},
		"a WebP without pixels":         {[]byte("RIFF\x04\x00\x00\x00WEBP"), vision.ErrCorrupt},
		"a JPEG that ends at once":      {[]byte("\xff\xd8\xff\xe1\xff\xff"), vision.ErrCorrupt},
		"an animated WebP":              {[]byte("RIFF\x14\x00\x00\x00WEBPANIM\x06\x00\x00\x00\x00\x00\x00\x00\x00\x00"), vision.ErrFormat},
		"a GIF whose frame lies beyond": {append(append([]byte("GIF89a\x01\x00\x01\x00\x00\x00\x00"), "\x2c\x00\x00\x00\x00\xff\xff\xff\xff\x00"...), 2, 0, 0x3b), vision.ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := vision.Decode(t.Context(), c.data, small); !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			if allocated := testing.AllocsPerRun(1, func() { _, _, _ = vision.Size(c.data, small) }); allocated > 500 {
				t.Errorf("reading the header made %v allocations", allocated)
			}
		})
	}
}

// Pillow (12.0) shows the transparent color of the palette, or its first, around a frame.
func TestAroundASmallFrameIsTheFirstColor(t *testing.T) {
	red, green := color.RGBA{R: 200, G: 10, B: 20, A: 255}, color.RGBA{R: 5, G: 220, B: 30, A: 255}
	for name, c := range map[string]struct {
		palette color.Palette
		want    [3]byte
	}{
		"opaque":      {palette: color.Palette{red, green}, want: [3]byte{200, 10, 20}},
		"transparent": {palette: color.Palette{red, green, color.RGBA{}}, want: [3]byte{255, 255, 255}},
	} {
		frame := image.NewPaletted(image.Rect(1, 1, 3, 2), c.palette)
		frame.Pix[0], frame.Pix[1] = 1, 1
		var data bytes.Buffer
		if err := gif.EncodeAll(&data, &gif.GIF{Image: []*image.Paletted{frame}, Delay: []int{0}, Config: image.Config{ColorModel: c.palette, Width: 4, Height: 3}}); err != nil {
			t.Fatal(err)
		}
		m, err := vision.Decode(t.Context(), data.Bytes(), vision.DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		want := bytes.Repeat(c.want[:], 4*3)
		copy(want[3*(4+1):], []byte{5, 220, 30, 5, 220, 30})
		if !bytes.Equal(m.Pix, want) {
			t.Errorf("%s: pixels %v, want %v", name, m.Pix, want)
		}
	}
}

func TestDamagedImagesAreErrors(t *testing.T) {
	for name := range record(t).Images {
		data := file(t, name)
		for _, n := range []int{len(data) / 8, len(data) / 2} {
			if m, err := vision.Decode(t.Context(), data[:n], vision.DefaultLimits()); err == nil && m == nil {
				t.Errorf("%s: %d bytes: neither image nor error", name, n)
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	names, err := filepath.Glob("testdata/*.*")
	if err != nil || len(names) == 0 {
		f.Fatal("no images", err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	limits := vision.Limits{Bytes: 1 << 20, Pixels: 1 << 16, Side: 1 << 12}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := vision.Decode(t.Context(), data, limits)
		if err != nil {
			return
		}
		w, h, err := vision.Size(data, limits)
		if err != nil || w != m.Width || h != m.Height || len(m.Pix) != 3*w*h || w*h > limits.Pixels {
			t.Errorf("%d x %d pixels in %d bytes; the header states %d x %d (%v)", m.Width, m.Height, len(m.Pix), w, h, err)
		}
	})
}

func TestAResizedImageOfOneColorKeepsIt(t *testing.T) {
	m := &vision.RGB{Width: 31, Height: 17, Pix: bytes.Repeat([]byte{3, 250, 99}, 31*17)}
	for _, f := range []vision.Filter{vision.Bilinear, vision.Bicubic} {
		for _, to := range [][2]int{{1, 1}, {31, 40}, {5, 17}, {300, 200}} {
			out := vision.Resize(m, to[0], to[1], f)
			if want := bytes.Repeat([]byte{3, 250, 99}, to[0]*to[1]); !bytes.Equal(out.Pix, want) {
				t.Errorf("filter %d to %v changes the color", f, to)
			}
		}
	}
}

func TestShapesWithoutASizeAreRefused(t *testing.T) {
	p, err := processor(t, map[string]any{"image_processor_type": "Qwen2VLImageProcessor"}, 14, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range [][2]int{{2001, 10}, {10, 2001}, {0, 1}, {math.MaxInt32, 1}} {
		if _, _, err := p.Grid(size[0], size[1]); !errors.Is(err, vision.ErrShape) {
			t.Errorf("%v: error %v, want %v", size, err, vision.ErrShape)
		}
	}
	if rows, columns, err := p.Grid(2000, 10); err != nil || rows*columns == 0 {
		t.Errorf("a ratio of 200 has %d x %d patches (%v)", rows, columns, err)
	}
}

// No shape makes more tokens than the memory for an image is promised for: an image of a ratio of
// 200 made 14 where one was the most.
func TestShapesThatMakeManyTokens(t *testing.T) {
	for _, pixels := range []int{28 * 28, 3 * 28 * 28, 4 * 28 * 28, 100 * 28 * 28, 1280 * 28 * 28} {
		for _, least := range []int{1, 28 * 28, pixels} {
			p, err := processor(t, map[string]any{"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": least, "max_pixels": pixels}, 14, 2)
			if err != nil {
				t.Fatal(err)
			}
			for _, size := range [][2]int{{1, 1}, {1, 200}, {200, 1}, {28, 28 * 200}, {3000, 15}, {20_000, 100}, {3, 2}, {300, 200}, {57, 111}, {10_000, 9000}} {
				if n, err := p.Tokens(size[0], size[1]); err != nil || n < 1 || n > p.MostTokens() {
					t.Errorf("%d to %d pixels: %v has %d tokens (%v), want 1 to %d", least, pixels, size, n, err, p.MostTokens())
				}
			}
		}
	}
}

// TestAttackAJPEGOfManyScans: a scan of a few bytes visits every pixel.
func TestAttackAJPEGOfManyScans(t *testing.T) {
	data := file(t, "progressive.jpg")
	scan := bytes.LastIndex(data, []byte{0xff, 0xda})
	end := bytes.LastIndex(data, []byte{0xff, 0xd9})
	if scan < 0 || end < scan {
		t.Fatal("no last scan")
	}
	many := func(n int) []byte {
		return slices.Concat(data[:end], bytes.Repeat(data[scan:end], n), data[end:])
	}
	if _, _, err := vision.Size(many(20), vision.DefaultLimits()); err != nil {
		t.Errorf("30 scans: %v", err)
	}
	for _, n := range []int{100, 20_000} {
		if _, _, err := vision.Size(many(n), vision.DefaultLimits()); !errors.Is(err, vision.ErrTooLarge) {
			t.Errorf("%d more scans: %v, want ErrTooLarge", n, err)
		}
		if _, err := vision.Decode(t.Context(), many(n), vision.DefaultLimits()); !errors.Is(err, vision.ErrTooLarge) {
			t.Errorf("%d more scans: %v, want ErrTooLarge", n, err)
		}
	}
	// A large image may have fewer.
	large := bytes.Clone(many(20))
	frame := bytes.Index(large, []byte{0xff, 0xc2})
	copy(large[frame+5:], []byte{0x0f, 0xff, 0x0f, 0xff}) // 4095 x 4095 pixels
	if _, _, err := vision.Size(large, vision.DefaultLimits()); !errors.Is(err, vision.ErrTooLarge) {
		t.Errorf("30 scans of 16 million pixels: %v, want ErrTooLarge", err)
	}
	// A scan of one that is not progressive is decoded to pixels each time, and each component has one.
	for _, name := range []string{"420.jpg", "gray.jpg", "cmyk.jpg"} {
		data := file(t, name)
		scan := bytes.LastIndex(data, []byte{0xff, 0xda})
		twice := slices.Concat(data[:len(data)-2], data[scan:])
		if _, err := vision.Decode(t.Context(), twice, vision.DefaultLimits()); !errors.Is(err, vision.ErrCorrupt) {
			t.Errorf("%s with its scan twice: %v, want ErrCorrupt", name, err)
		}
		header := 2 + int(data[scan+2])<<8 + int(data[scan+3])
		apart := bytes.Clone(data[:scan])
		for i := range int(data[scan+4]) {
			apart = append(append(apart, 0xff, 0xda, 0, 8, 1), data[scan+5+2*i:][:2]...)
			apart = append(append(apart, 0, 63, 0), data[scan+header:len(data)-2]...)
		}
		if _, _, err := vision.Size(append(apart, 0xff, 0xd9), vision.DefaultLimits()); err != nil {
			t.Errorf("%s with a scan for each component: %v", name, err)
		}
	}
}

// A decoder's memory is bounded by the header: 16 bits a channel, or coefficients, take more.
func TestAttackPixelsThatTakeMoreThanTheirShare(t *testing.T) {
	small := func(pixels int) vision.Limits { return vision.Limits{Bytes: 1 << 20, Pixels: pixels, Side: 1 << 12} }
	deep := image.NewNRGBA64(image.Rect(0, 0, 40, 40))
	var deeper bytes.Buffer
	if err := png.Encode(&deeper, deep); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		data []byte
		want error
	}{
		"16 bits a channel": {data: deeper.Bytes(), want: vision.ErrTooLarge},
		"progressive":       {data: file(t, "progressive.jpg"), want: vision.ErrTooLarge},
		"CMYK":              {data: file(t, "cmyk.jpg"), want: vision.ErrTooLarge},
		"4:4:4":             {data: file(t, "444.jpg")},
	} {
		width, height, err := vision.Size(c.data, vision.DefaultLimits())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, _, err := vision.Size(c.data, small(width*height)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestDecodingEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, name := range []string{"444.jpg", "color.png", "lossy.webp", "still.gif"} {
		if _, err := vision.Decode(ctx, file(t, name), vision.DefaultLimits()); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
