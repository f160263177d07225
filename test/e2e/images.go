package main

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

func archives(dir string) []string {
	var out []string
	for _, name := range []string{"pause", "coredns", "operator", "gateway", "client"} {
		out = append(out, filepath.Join(dir, "images", name+".tar"))
	}
	return out
}

// writeImages packs what Pods run: static programs, and an interpreter with the
// official client.
func writeImages(ctx context.Context, o options) error {
	dir := filepath.Join(o.dir, "images")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	bin := func(name string) string { return filepath.Join(o.root, "bin", name) }
	program := func(name, path string) image.Image {
		inside := "/" + filepath.Base(path)
		return image.Image{Name: name, Entrypoint: []string{inside}, Files: map[string]string{inside: path}}
	}
	images := map[string]image.Image{
		"pause": program(cluster.PauseImage, bin("kube/pause")), "coredns": program(cluster.DNSImage, bin("kube/coredns")),
		"operator": program(registry+"/operator:"+tag, bin("operator")), "gateway": program(registry+"/gateway:"+tag, bin("gateway")),
	}
	client, err := clientOf(ctx, o)
	if err != nil {
		return err
	}
	images["client"] = client
	for name, i := range images {
		if err := image.Write(filepath.Join(dir, name+".tar"), i); err != nil {
			return err
		}
	}
	return nil
}

// clientOf is the interpreter of this machine with the libraries that it loads,
// the official client and our script.
func clientOf(ctx context.Context, o options) (image.Image, error) {
	var needs struct {
		Home  string            `json:"home"`
		Files map[string]string `json:"files"`
	}
	cmd := exec.CommandContext(ctx, o.python, filepath.Join(o.root, "test", "e2e", "interpreter.py"))
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	if err != nil {
		return image.Image{}, fmt.Errorf("what the interpreter needs: %w; run test/client.sh", err)
	}
	if err := json.Unmarshal(b, &needs); err != nil {
		return image.Image{}, fmt.Errorf("what the interpreter needs: %w", err)
	}
	packages, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(o.python)), "lib", "python*", "site-packages"))
	if err != nil || len(packages) != 1 {
		return image.Image{}, fmt.Errorf("packages of %s: %v, %w; run test/client.sh", o.python, packages, err)
	}
	needs.Files["/packages"] = packages[0]
	for _, script := range []string{"ask.py", "load.py"} {
		needs.Files["/"+script] = filepath.Join(o.root, "test", "e2e", script)
	}
	return image.Image{
		Name: clientImage, Entrypoint: []string{interpreter}, Files: needs.Files,
		Env:  []string{"PYTHONHOME=" + needs.Home, "PYTHONPATH=/packages", "PYTHONDONTWRITEBYTECODE=1", "HOME=/tmp"},
		Skip: []string{"site-packages", "test", "tests", "idlelib", "tkinter", "ensurepip", "__pycache__", "pip"},
	}, nil
}
