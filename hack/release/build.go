package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
)

// program is a program linked for one system.
type program struct {
	name, goos, goarch string
	// mlx is true for the GPU back end, which make darwin links.
	mlx  bool
	path string
	info *debug.BuildInfo
	// modules that are linked into it, including the standard library.
	modules []module
}

func (p *program) system() string { return p.goos + "/" + p.goarch }

// programs are the programs of a release.
func programs() []*program {
	list := []*program{{name: "agent", goos: "darwin", goarch: "arm64"}, {name: "engine", goos: "darwin", goarch: "arm64", mlx: true}}
	for _, p := range [][2]string{{"darwin", "amd64"}, {"darwin", "arm64"}, {"linux", "amd64"}, {"linux", "arm64"}} {
		list = append(list, &program{name: plugin, goos: p[0], goarch: p[1]})
	}
	for _, name := range []string{"operator", "gateway"} {
		for _, arch := range []string{"amd64", "arm64"} {
			list = append(list, &program{name: name, goos: "linux", goarch: arch})
		}
	}
	return list
}

const plugin = "kubectl-metalfleet"

// variables are the environment of the build; the caller's settings must not change a byte.
func (p *program) variables() []string {
	cgo := "0"
	if p.mlx {
		cgo = "1"
	}
	return []string{"GOOS=" + p.goos, "GOARCH=" + p.goarch, "CGO_ENABLED=" + cgo, "GOFLAGS=-trimpath -buildvcs=false", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT="}
}

// build links every program.
func (r *release) build(ctx context.Context, list []*program) error {
	for _, p := range list {
		fmt.Fprintf(os.Stderr, "release: %s for %s\n", p.name, p.system())
		var err error
		if p.mlx {
			p.path = filepath.Join(r.root, "bin", "darwin-arm64", "mlx", p.name)
			_, err = output(ctx, r.root, []string{"GOEXPERIMENT=", "GOARM64=v8.0"}, "bash", "hack/darwin/run.sh", r.version)
		} else {
			p.path = filepath.Join(r.bin, p.goos+"-"+p.goarch, p.name)
			_, err = output(ctx, r.root, p.variables(), "go", "build", "-ldflags", "-s -w -X main.version="+r.version, "-o", p.path, "./cmd/"+p.name)
		}
		if err != nil {
			return err
		}
		if p.info, err = buildinfo.ReadFile(p.path); err != nil {
			return fmt.Errorf("what is linked into %s: %w", p.path, err)
		}
		if p.modules, err = r.linked(ctx, p); err != nil {
			return fmt.Errorf("%s for %s: %w", p.name, p.system(), err)
		}
	}
	return nil
}
