// Package image writes container images without a container engine: an OCI archive with one
// layer for each processor, as `ctr images import` and `docker load` read it.
//
// It owns the archive's format. The same files give the same bytes: times are zero, the
// owner is root, entries are sorted. It rejects anything but files, links and folders, and
// two files at one path.
//
// Start reading at Write; WriteIndex does the same for several processors.
package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Image describes an image.
type Image struct {
	// Name with a tag, such as "metalfleet.test/pause:1".
	Name       string
	Entrypoint []string
	Env        []string
	// User is "uid:gid"; empty means 65532:65532, as in distroless images.
	User string
	// Arch is the processor, as Go names it; empty means this machine's.
	Arch string
	// Files maps paths in the image to folders and files outside.
	Files map[string]string
	// Skip are names of folders and files that are left out of folders.
	Skip []string
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    map[string]string `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Write writes the archive, under its final name only when it is whole.
func Write(file string, i Image) error {
	b, err := archive(i)
	if err != nil {
		return fmt.Errorf("image %s: %w", i.Name, err)
	}
	return replace(file, b)
}

// WriteIndex writes images of one name for several processors as one archive: a container
// engine picks the one that fits.
func WriteIndex(file string, images []Image) error {
	b, err := indexArchive(images)
	if err != nil {
		return fmt.Errorf("images: %w", err)
	}
	return replace(file, b)
}

func replace(file string, b []byte) error {
	if err := os.WriteFile(file+".part", b, 0o644); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	return os.Rename(file+".part", file)
}

// blobs are the files of an archive, by their path inside.
type blobs map[string][]byte

func (b blobs) add(kind string, body []byte) descriptor {
	sum := sha256.Sum256(body)
	d := hex.EncodeToString(sum[:])
	b["blobs/sha256/"+d] = body
	return descriptor{MediaType: "application/vnd.oci.image." + kind, Digest: "sha256:" + d, Size: len(body)}
}

// name adds the annotations by which container engines find the image.
func (d descriptor) name(name, tag string) descriptor {
	d.Annotations = map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag}
	return d
}

func archive(i Image) ([]byte, error) {
	tag, err := tagOf(i.Name)
	if err != nil {
		return nil, err
	}
	b := blobs{}
	manifest, err := b.image(i)
	if err != nil {
		return nil, err
	}
	return b.tar(manifest.name(i.Name, tag))
}

func indexArchive(images []Image) ([]byte, error) {
	if len(images) == 0 {
		return nil, errors.New("an index needs an image")
	}
	name := images[0].Name
	tag, err := tagOf(name)
	if err != nil {
		return nil, err
	}
	b := blobs{}
	var manifests []descriptor
	seen := map[string]bool{}
	for _, i := range images {
		if i.Name != name || i.Arch == "" || seen[i.Arch] {
			return nil, fmt.Errorf("%s for %q is not another processor of %s", i.Name, i.Arch, name)
		}
		seen[i.Arch] = true
		m, err := b.image(i)
		if err != nil {
			return nil, err
		}
		manifests = append(manifests, m)
	}
	index := b.add("index.v1+json", text(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests,
	}))
	return b.tar(index.name(name, tag))
}

func tagOf(name string) (string, error) {
	_, tag, ok := strings.Cut(path.Base(name), ":")
	if !ok {
		return "", fmt.Errorf("a name needs a tag, such as %s:1", name)
	}
	return tag, nil
}

// image adds one image and returns its manifest.
func (b blobs) image(i Image) (descriptor, error) {
	layer, err := layerOf(i.Files, i.Skip)
	if err != nil {
		return descriptor{}, err
	}
	user := i.User
	if user == "" {
		user = "65532:65532"
	}
	arch := cmp.Or(i.Arch, runtime.GOARCH)
	platform := map[string]string{"architecture": arch, "os": "linux"}
	l := b.add("layer.v1.tar", layer)
	config := b.add("config.v1+json", text(map[string]any{
		"architecture": arch, "os": "linux",
		"config": map[string]any{"Entrypoint": i.Entrypoint, "User": user, "Env": i.Env},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{l.Digest}},
	}))
	manifest := b.add("manifest.v1+json", text(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": []descriptor{l},
	}))
	manifest.Platform = platform
	return manifest, nil
}

// tar packs the blobs with the index that refers to them.
func (b blobs) tar(top descriptor) ([]byte, error) {
	b["oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`)
	b["index.json"] = text(map[string]any{"schemaVersion": 2, "manifests": []descriptor{top}})
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(b)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(b[name])), Mode: 0o644}); err != nil {
			return nil, err
		}
		if _, err := w.Write(b[name]); err != nil {
			return nil, err
		}
	}
	err := w.Close() // it writes the end, so the bytes are read after it
	return out.Bytes(), err
}

func text(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of strings: it cannot
	}
	return b
}

// layerOf packs files with the folders above them.
func layerOf(files map[string]string, skip []string) ([]byte, error) {
	entries := map[string]string{} // inside to outside; "" is a folder of ours
	for to, from := range files {
		err := filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if p != from && slices.Contains(skip, d.Name()) {
				if d.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			rel, err := filepath.Rel(from, p)
			if err != nil {
				return err
			}
			name := strings.TrimPrefix(path.Join("/", to, filepath.ToSlash(rel)), "/")
			if old, there := entries[name]; there && old != "" && !d.IsDir() {
				return fmt.Errorf("%s and %s are both to lie at /%s", old, p, name)
			}
			if name != "" {
				entries[name] = p
			}
			for dir := path.Dir(name); dir != "." && dir != "/"; dir = path.Dir(dir) {
				if _, there := entries[dir]; !there {
					entries[dir] = ""
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		if err := put(w, name, entries[name]); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

func put(w *tar.Writer, name, from string) error {
	if from == "" {
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755})
	}
	st, err := os.Lstat(from)
	if err != nil {
		return err
	}
	switch {
	case st.IsDir():
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755})
	case st.Mode()&fs.ModeSymlink != 0:
		to, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777})
	case !st.Mode().IsRegular():
		return fmt.Errorf("%s is neither file, link nor folder", from)
	}
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := w.WriteHeader(&tar.Header{Name: name, Size: st.Size(), Mode: int64(st.Mode().Perm() | 0o444)}); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}
