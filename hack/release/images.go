package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// ociIndex, ociManifest and ociConfig are the parts of images that are read.
type ociIndex struct {
	Manifests []struct {
		MediaType, Digest string
		Platform          struct{ OS, Architecture string }
		Annotations       map[string]string
	}
}

type ociManifest struct {
	Config struct{ Digest string }
	Layers []struct{ Digest string }
}

type ociConfig struct {
	OS, Architecture string
	Config           struct {
		Entrypoint []string
		User       string
	}
}

// image checks the images of one program: both processors, and each against the Dockerfile.
func (c *checker) image(ctx context.Context, name string) {
	file := "metalfleet-" + name + "_" + c.version + "_linux.oci.tar"
	u, err := unpack(filepath.Join(c.dir, file), false)
	if err != nil {
		c.add("%s: %v", file, err)
		return
	}
	blob := func(digest string, into any) []byte {
		b := u.body["blobs/"+strings.Replace(digest, ":", "/", 1)]
		if digest != fmt.Sprintf("sha256:%x", sha256.Sum256(b)) {
			c.add("%s: blob %s is damaged or missing", file, digest)
		} else if into != nil {
			if err := json.Unmarshal(b, into); err != nil {
				c.add("%s: blob %s: %v", file, digest, err)
			}
		}
		return b
	}
	var top, index ociIndex
	if err := json.Unmarshal(u.body["index.json"], &top); err != nil || len(top.Manifests) != 1 {
		c.add("%s: index.json: %v", file, err)
		return
	}
	if !strings.HasSuffix(top.Manifests[0].Annotations["io.containerd.image.name"], "/"+name+":"+c.version) {
		c.add("%s: it is named %q", file, top.Manifests[0].Annotations)
	}
	blob(top.Manifests[0].Digest, &index)
	var arches []string
	for _, m := range index.Manifests {
		arches = append(arches, m.Platform.OS+"/"+m.Platform.Architecture)
		var manifest ociManifest
		var config ociConfig
		blob(m.Digest, &manifest)
		blob(manifest.Config.Digest, &config)
		if len(manifest.Layers) != 1 || config.OS != m.Platform.OS || config.Architecture != m.Platform.Architecture {
			c.add("%s: %s is %s/%s in %d layers", file, m.Platform, config.OS, config.Architecture, len(manifest.Layers))
			continue
		}
		c.layer(ctx, file, name, config, blob(manifest.Layers[0].Digest, nil))
	}
	if !slices.Equal(arches, []string{"linux/amd64", "linux/arm64"}) {
		c.add("%s: it is for %q", file, arches)
	}
}

// layer checks the contents and the entry point of one image.
func (c *checker) layer(ctx context.Context, file, name string, config ociConfig, layer []byte) {
	what := file + " for " + config.Architecture
	u := unpacked{map[string][]byte{}, map[string]int64{}}
	if err := u.read(bytes.NewReader(layer)); err != nil {
		c.add("%s: %v", what, err)
	}
	c.holds(what, u, name, "licenses/LICENSE", "licenses/NOTICE")
	user, entrypoint, err := dockerfile(filepath.Join(c.root, "Dockerfile"), name)
	if err != nil || config.Config.User != user || !slices.Equal(config.Config.Entrypoint, entrypoint) {
		c.add("%s starts %q as %s; the Dockerfile says %q as %s (%v)", what, config.Config.Entrypoint, config.Config.User, entrypoint, user, err)
	}
	c.linux(what, u.body[name], config.Architecture)
	if runtime.GOOS == "linux" && config.Architecture == runtime.GOARCH {
		c.runs(ctx, what, u.body[name], "--version")
	}
	c.parts(file, u.body["licenses/NOTICE"], u.body[name])
}

// dockerfile parses one stage of the Dockerfile.
func dockerfile(path, stage string) (user string, entrypoint []string, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	_, rest, _ := strings.Cut(string(b), "\nFROM scratch AS "+stage+"\n")
	rest, _, _ = strings.Cut(rest, "\nFROM ")
	for line := range strings.Lines(rest) {
		word, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "USER":
			user = value
		case "ENTRYPOINT":
			err = json.Unmarshal([]byte(value), &entrypoint)
		}
	}
	return user, entrypoint, err
}
