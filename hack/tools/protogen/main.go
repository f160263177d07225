// Command protogen turns .proto files into Go: it parses and links them in pure Go, so that
// protoc need not be installed, and passes the result to the same plugins that protoc would
// call (protoc-gen-go and protoc-gen-go-grpc, both pinned in this module).
//
//	go run -C hack/tools ./protogen -root ../.. metal/wire/wire.proto
//
// Files are written next to their source (paths=source_relative). It rejects imports it
// cannot find under the root or among the well-known types, and plugins that return a path
// outside the root.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// plugin is one generator: the Go tool's name and the options it is given.
type plugin struct {
	tool   string
	params string
}

func plugins() []plugin {
	return []plugin{
		{tool: "protoc-gen-go", params: "paths=source_relative"},
		{tool: "protoc-gen-go-grpc", params: "paths=source_relative,require_unimplemented_servers=true"},
	}
}

func main() {
	root := flag.String("root", ".", "folder that proto paths and outputs are relative to")
	flag.Parse()
	if err := run(context.Background(), *root, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root string, files []string) error {
	if len(files) == 0 {
		return errors.New("name at least one .proto file, relative to -root")
	}
	linked, err := compile(ctx, root, files)
	if err != nil {
		return err
	}
	descriptors := ordered(linked)
	for _, p := range plugins() {
		answer, err := call(ctx, p, files, descriptors)
		if err != nil {
			return fmt.Errorf("%s: %w", p.tool, err)
		}
		if err := write(root, answer); err != nil {
			return fmt.Errorf("%s: %w", p.tool, err)
		}
	}
	return nil
}

// compile parses and links the files; source info keeps their comments, which
// the generators copy.
func compile(ctx context.Context, root string, files []string) (linker.Files, error) {
	c := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
			ImportPaths: []string{root},
		}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	linked, err := c.Compile(ctx, files...)
	if err != nil {
		return nil, fmt.Errorf("compile %s: %w", strings.Join(files, ", "), err)
	}
	return linked, nil
}

// ordered lists the files and everything they import, imports first: the
// order the plugin protocol asks for.
func ordered(files linker.Files) []*descriptorpb.FileDescriptorProto {
	var out []*descriptorpb.FileDescriptorProto
	seen := map[string]bool{}
	var visit func(protoreflect.FileDescriptor)
	visit = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			visit(f.Imports().Get(i).FileDescriptor)
		}
		out = append(out, protodesc.ToFileDescriptorProto(f))
	}
	for _, f := range files {
		visit(f)
	}
	return out
}

// call runs one plugin as protoc would: a request on its input, an answer on
// its output.
func call(ctx context.Context, p plugin, files []string, all []*descriptorpb.FileDescriptorProto) (*pluginpb.CodeGeneratorResponse, error) {
	request, err := proto.Marshal(&pluginpb.CodeGeneratorRequest{
		FileToGenerate: files,
		Parameter:      proto.String(p.params),
		ProtoFile:      all,
	})
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	cmd := exec.CommandContext(ctx, "go", "tool", p.tool)
	cmd.Stdin = bytes.NewReader(request)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("run: %w", err)
	}
	answer := &pluginpb.CodeGeneratorResponse{}
	if err := proto.Unmarshal(out, answer); err != nil {
		return nil, fmt.Errorf("decode answer: %w", err)
	}
	if answer.Error != nil {
		return nil, errors.New(answer.GetError())
	}
	return answer, nil
}

func write(root string, answer *pluginpb.CodeGeneratorResponse) error {
	for _, f := range answer.GetFile() {
		if !filepath.IsLocal(f.GetName()) {
			return fmt.Errorf("answered with a path outside the root: %q", f.GetName())
		}
		path := filepath.Join(root, filepath.FromSlash(f.GetName()))
		if err := os.WriteFile(path, []byte(f.GetContent()), 0o644); err != nil {
			return fmt.Errorf("write %s: %w", f.GetName(), err)
		}
	}
	return nil
}
