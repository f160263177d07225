package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/pluginpb"
)

func put(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestImportsComeBeforeWhatImportsThem(t *testing.T) {
	root := t.TempDir()
	put(t, root, "a/low.proto", "syntax = \"proto3\";\npackage a;\nmessage Low {}\n")
	put(t, root, "b/high.proto", "syntax = \"proto3\";\npackage b;\nimport \"a/low.proto\";\nimport \"google/protobuf/duration.proto\";\n"+
		"message High { a.Low low = 1; google.protobuf.Duration d = 2; }\n")
	linked, err := compile(t.Context(), root, []string{"b/high.proto"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range ordered(linked) {
		got = append(got, f.GetName())
	}
	if want := "a/low.proto google/protobuf/duration.proto b/high.proto"; strings.Join(got, " ") != want {
		t.Errorf("order %q, want %q", got, want)
	}
}

func TestRefusesWhatItCannotFind(t *testing.T) {
	root := t.TempDir()
	put(t, root, "a.proto", "syntax = \"proto3\";\nimport \"gone.proto\";\n")
	if _, err := compile(t.Context(), root, []string{"a.proto"}); err == nil || !strings.Contains(err.Error(), "gone.proto") {
		t.Errorf("error %v, want one that names gone.proto", err)
	}
	if err := run(t.Context(), root, nil); err == nil {
		t.Error("no file at all was accepted")
	}
}

func TestRefusesAnAnswerOutsideTheRoot(t *testing.T) {
	root := t.TempDir()
	answer := &pluginpb.CodeGeneratorResponse{File: []*pluginpb.CodeGeneratorResponse_File{
		{Name: proto.String("../out.go"), Content: proto.String("package out")},
	}}
	if err := write(filepath.Join(root, "in"), answer); err == nil || !strings.Contains(err.Error(), "outside the root") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(filepath.Join(root, "out.go")); !os.IsNotExist(err) {
		t.Errorf("a file was written outside the root: %v", err)
	}
}
