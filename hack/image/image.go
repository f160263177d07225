// Package image writes container images without a container engine: an OCI
// archive of one layer, as `ctr images import` and `docker load` read it.
//
// It owns the archive's form. The same files give the same bytes: times are
// zero, owners root, entries sorted. It refuses what is neither a file, a link
// nor a folder, and two files at one path.
//
// Start reading at Write.
package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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

// Image is what to write.
type Image struct {
	// Name with a tag, such as "metalfleet.test/pause:1".
	Name       string
	Entrypoint []string
	Env        []string
	// User is "uid:gid"; empty means 65532:65532, nobody.
	User string
	// Arch is the processor, as Go names it; empty means this machine's.
	Arch string
	// Files are folders and files by their path inside: what lies there outside.
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
	if err := os.WriteFile(file+".part", b, 0o644); err != nil {
		return fmt.Errorf("image %s: %w", i.Name, err)
	}
	return os.Rename(file+".part", file)
}

func archive(i Image) ([]byte, error) {
	_, tag, ok := strings.Cut(path.Base(i.Name), ":")
	if !ok {
		return nil, fmt.Errorf("a name needs a tag, such as %s:1", i.Name)
	}
	layer, err := layerOf(i.Files, i.Skip)
	if err != nil {
		return nil, err
	}
	blobs := map[string][]byte{}
	add := func(kind string, b []byte) descriptor {
		sum := sha256.Sum256(b)
		d := hex.EncodeToString(sum[:])
		blobs["blobs/sha256/"+d] = b
		return descriptor{MediaType: "application/vnd.oci.image." + kind, Digest: "sha256:" + d, Size: len(b)}
	}
	user := i.User
	if user == "" {
		user = "65532:65532"
	}
	arch := cmp.Or(i.Arch, runtime.GOARCH)
	platform := map[string]string{"architecture": arch, "os": "linux"}
	l := add("layer.v1.tar", layer)
	config := add("config.v1+json", text(map[string]any{
		"architecture": arch, "os": "linux",
		"config": map[string]any{"Entrypoint": i.Entrypoint, "User": user, "Env": i.Env},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{l.Digest}},
	}))
	manifest := add("manifest.v1+json", text(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": []descriptor{l},
	}))
	manifest.Platform = platform
	manifest.Annotations = map[string]string{"io.containerd.image.name": i.Name, "org.opencontainers.image.ref.name": tag}
	blobs["oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`)
	blobs["index.json"] = text(map[string]any{"schemaVersion": 2, "manifests": []descriptor{manifest}})

	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(blobs)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(blobs[name])), Mode: 0o644}); err != nil {
			return nil, err
		}
		if _, err := w.Write(blobs[name]); err != nil {
			return nil, err
		}
	}
	err = w.Close() // it writes the end, so the bytes are taken after it
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
