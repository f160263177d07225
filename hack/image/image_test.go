//go:build !race

package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// entries of a tar archive, by name.
func entries(t *testing.T, b []byte) (map[string][]byte, []string) {
	t.Helper()
	out, names := map[string][]byte{}, []string(nil)
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out, names
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeSymlink {
			body = []byte("-> " + h.Linkname)
		}
		out[h.Name], names = body, append(names, h.Name)
	}
}

// whole requires the two empty blocks at the end, without which tar programs other
// than Go's report a truncated archive.
func whole(t *testing.T, b []byte) {
	t.Helper()
	if len(b)%512 != 0 || len(b) < 1024 || !bytes.Equal(b[len(b)-1024:], make([]byte, 1024)) {
		t.Errorf("an archive of %d bytes has no end", len(b))
	}
}

func TestAnImageIsWhatContainerEnginesRead(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"program": "elf", "tree/a/x": "1", "tree/b": "2", "tree/cache/y": "3"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("b", filepath.Join(dir, "tree", "c")); err != nil {
		t.Fatal(err)
	}
	i := Image{Name: "metalfleet.test/x:1", Arch: "riscv64", Skip: []string{"cache"}, Entrypoint: []string{"/program"}, Files: map[string]string{
		"/program": filepath.Join(dir, "program"), "/usr/lib": filepath.Join(dir, "tree"),
	}}
	b, err := archive(i)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := archive(i); err != nil || !bytes.Equal(b, again) {
		t.Errorf("the same files give other bytes (%v)", err)
	}
	blobs, _ := entries(t, b)
	whole(t, b)
	blob := func(d descriptor) []byte {
		b := blobs["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		if sum := sha256.Sum256(b); "sha256:"+hex.EncodeToString(sum[:]) != d.Digest || len(b) != d.Size {
			t.Fatalf("blob %+v is of %d bytes", d, len(b))
		}
		return b
	}
	var index struct{ Manifests []descriptor }
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	var config struct {
		Architecture string
		Config       struct {
			Entrypoint []string
			User       string
		}
		Rootfs struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	if err := json.Unmarshal(blobs["index.json"], &index); err != nil || index.Manifests[0].Annotations["io.containerd.image.name"] != i.Name {
		t.Fatalf("index %s: %v", blobs["index.json"], err)
	}
	if err := errors.Join(json.Unmarshal(blob(index.Manifests[0]), &manifest), json.Unmarshal(blob(manifest.Config), &config)); err != nil {
		t.Fatal(err)
	}
	if p := index.Manifests[0].Platform; config.Architecture != "riscv64" || p["architecture"] != "riscv64" {
		t.Errorf("it is for %s, and says %v", config.Architecture, p)
	}
	if config.Config.User != "65532:65532" || !slices.Equal(config.Config.Entrypoint, i.Entrypoint) || !slices.Equal(config.Rootfs.DiffIDs, []string{manifest.Layers[0].Digest}) {
		t.Errorf("configuration %+v", config)
	}
	whole(t, blob(manifest.Layers[0]))
	files, names := entries(t, blob(manifest.Layers[0]))
	want := []string{"program", "usr/", "usr/lib/", "usr/lib/a/", "usr/lib/a/x", "usr/lib/b", "usr/lib/c"}
	if !slices.Equal(names, want) || string(files["usr/lib/a/x"]) != "1" || string(files["usr/lib/c"]) != "-> b" {
		t.Errorf("the layer has %q", names)
	}
}

func TestAnImageOfWhatCannotBePackedIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "a"), nil, 0o644), os.Mkdir(filepath.Join(dir, "d"), 0o755), os.WriteFile(filepath.Join(dir, "d", "x"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		i    Image
		want string
	}{
		"no tag":              {i: Image{Name: "x/y"}, want: "tag"},
		"no such file":        {i: Image{Name: "x:1", Files: map[string]string{"/a": filepath.Join(dir, "b")}}, want: "no such file"},
		"two files, one path": {i: Image{Name: "x:1", Files: map[string]string{"/d/x": filepath.Join(dir, "a"), "/d": filepath.Join(dir, "d")}}, want: "both"},
		"a device":            {i: Image{Name: "x:1", Files: map[string]string{"/null": os.DevNull}}, want: "neither"},
	} {
		if err := Write(filepath.Join(dir, "out"), c.i); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "out*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestAnIndexHoldsAnImageForEachProcessor(t *testing.T) {
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, []byte("elf"), 0o755); err != nil {
		t.Fatal(err)
	}
	of := func(name, arch string) Image {
		return Image{Name: name, Arch: arch, Files: map[string]string{"/p": file}}
	}
	b, err := indexArchive([]Image{of("metalfleet.test/x:1", "amd64"), of("metalfleet.test/x:1", "arm64")})
	if err != nil {
		t.Fatal(err)
	}
	blobs, _ := entries(t, b)
	whole(t, b)
	var top, index struct{ Manifests []descriptor }
	if err := json.Unmarshal(blobs["index.json"], &top); err != nil || len(top.Manifests) != 1 ||
		top.Manifests[0].MediaType != "application/vnd.oci.image.index.v1+json" || top.Manifests[0].Annotations["io.containerd.image.name"] != "metalfleet.test/x:1" {
		t.Fatalf("top %s: %v", blobs["index.json"], err)
	}
	if err := json.Unmarshal(blobs["blobs/sha256/"+strings.TrimPrefix(top.Manifests[0].Digest, "sha256:")], &index); err != nil {
		t.Fatal(err)
	}
	var arches []string
	for _, m := range index.Manifests {
		arches = append(arches, m.Platform["os"]+"/"+m.Platform["architecture"])
		if m.Annotations != nil || blobs["blobs/sha256/"+strings.TrimPrefix(m.Digest, "sha256:")] == nil {
			t.Errorf("manifest %+v", m)
		}
	}
	if !slices.Equal(arches, []string{"linux/amd64", "linux/arm64"}) {
		t.Errorf("it is for %q", arches)
	}
	for name, images := range map[string][]Image{
		"none": nil, "two names": {of("a/x:1", "amd64"), of("a/y:1", "arm64")}, "one processor twice": {of("a/x:1", "amd64"), of("a/x:1", "amd64")}, "no tag": {of("a/x", "amd64")},
	} {
		if _, err := indexArchive(images); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
