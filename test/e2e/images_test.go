//go:build e2e && linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"metalfleet.dev/metalfleet/hack/image"
	"metalfleet.dev/metalfleet/test/cluster"
)

// Images of the project and of the client, as Pods name them.
const (
	registry    = "metalfleet.test"
	tag         = "e2e"
	clientImage = registry + "/client:" + tag
	interpreter = "/python" // inside the client's image
)

func (w *world) archives() (out []string) {
	for _, name := range []string{"pause", "coredns", "operator", "gateway", "client"} {
		out = append(out, filepath.Join(filepath.Dir(w.dir), "images", name+".tar"))
	}
	return out
}

// writeImages packs what Pods run: static programs, and an interpreter with the
// official client.
func (w *world) writeImages(ctx context.Context) error {
	bin := func(name string) string { return filepath.Join(w.root, "bin", name) }
	program := func(name, path string) image.Image {
		inside := "/" + filepath.Base(path)
		return image.Image{Name: name, Entrypoint: []string{inside}, Files: map[string]string{inside: path}}
	}
	client, err := w.clientImage(ctx)
	if err != nil {
		return err
	}
	images := []image.Image{
		program(cluster.PauseImage, bin("kube/pause")), program(cluster.DNSImage, bin("kube/coredns")),
		program(registry+"/operator:"+tag, bin("operator")), program(registry+"/gateway:"+tag, bin("gateway")), client,
	}
	for i, archive := range w.archives() {
		if err := os.MkdirAll(filepath.Dir(archive), 0o755); err != nil {
			return err
		}
		if err := image.Write(archive, images[i]); err != nil {
			return fmt.Errorf("%w; make e2e builds what it needs", err)
		}
	}
	return nil
}

// clientImage is the interpreter of this machine with the libraries that it loads,
// the official client and our scripts.
func (w *world) clientImage(ctx context.Context) (image.Image, error) {
	python := filepath.Join(w.root, ".cache", "client", "bin", "python")
	scripts := filepath.Join(w.root, "test", "e2e", "testdata")
	var needs struct {
		Home  string            `json:"home"`
		Files map[string]string `json:"files"`
	}
	cmd := exec.CommandContext(ctx, python, filepath.Join(scripts, "interpreter.py"))
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(b, &needs)
	}
	if err != nil {
		return image.Image{}, fmt.Errorf("what the interpreter needs: %w; run test/client.sh", err)
	}
	packages, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(python)), "lib", "python*", "site-packages"))
	if err != nil || len(packages) != 1 {
		return image.Image{}, fmt.Errorf("packages of %s: %v, %w; run test/client.sh", python, packages, err)
	}
	needs.Files["/packages"] = packages[0]
	for _, script := range []string{"ask.py", "load.py"} {
		needs.Files["/"+script] = filepath.Join(scripts, script)
	}
	return image.Image{
		Name: clientImage, Entrypoint: []string{interpreter}, Files: needs.Files,
		Env:  []string{"PYTHONHOME=" + needs.Home, "PYTHONPATH=/packages", "PYTHONDONTWRITEBYTECODE=1", "HOME=/tmp"},
		Skip: []string{"site-packages", "test", "tests", "idlelib", "tkinter", "ensurepip", "__pycache__", "pip"},
	}, nil
}
