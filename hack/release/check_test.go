//go:build !race

package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"debug/buildinfo"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"metalfleet.dev/metalfleet/hack/image"
)

const testVersion = "v0.9.1-test.1"

// small builds a program that prints its version, for each system, once for all tests;
// TestMain removes them.
func small(t *testing.T) map[string]string {
	t.Helper()
	smallOnes.Lock()
	defer smallOnes.Unlock()
	if smallOnes.built != nil {
		return smallOnes.built
	}
	dir, err := os.MkdirTemp("", "small")
	if err != nil {
		t.Fatal(err)
	}
	smallOnes.dir = dir
	for name, text := range map[string]string{
		"go.mod":  "module example.org/small\n\ngo 1.26\n",
		"main.go": "package main\n\nimport \"syscall\"\n\nvar version string\n\nfunc main() { syscall.Write(1, []byte(\"small \"+version+\"\\n\")) }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	built := map[string]string{}
	for _, system := range []string{"darwin/amd64", "darwin/arm64", "linux/amd64", "linux/arm64"} {
		goos, arch, _ := strings.Cut(system, "/")
		p := &program{goos: goos, goarch: arch}
		built[system] = filepath.Join(dir, goos+"-"+arch)
		c := exec.Command("go", "build", "-ldflags", "-s -w -X main.version="+testVersion, "-o", built[system], ".")
		c.Dir, c.Env = dir, append(os.Environ(), p.variables()...)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	smallOnes.built = built
	return built
}

var smallOnes struct {
	sync.Mutex
	dir   string
	built map[string]string
}

func TestMain(m *testing.M) {
	code := m.Run()
	if smallOnes.dir != "" {
		_ = os.RemoveAll(smallOnes.dir)
	}
	os.Exit(code)
}

// withLibmlx adds libmlx in its own folder to the libraries of a program for Macs.
func withLibmlx(t *testing.T, body []byte) []byte {
	t.Helper()
	body = slices.Clone(body)
	command := func(kind uint32, head []uint32, text string) []byte {
		size := (8 + 4*len(head) + len(text) + 1 + 7) &^ 7
		b := make([]byte, size)
		binary.LittleEndian.PutUint32(b, kind)
		binary.LittleEndian.PutUint32(b[4:], uint32(size))
		for i, h := range head {
			binary.LittleEndian.PutUint32(b[8+4*i:], h)
		}
		copy(b[8+4*len(head):], text)
		return b
	}
	more := append(command(0xc, []uint32{24, 0, 0, 0}, "@rpath/libmlx.dylib"), command(0x8000001c, []uint32{12}, "@executable_path")...)
	size := binary.LittleEndian.Uint32(body[20:])
	if room := body[32+size : int(32+size)+len(more)]; !bytes.Equal(room, make([]byte, len(room))) {
		t.Fatal("there is no room for load commands")
	}
	copy(body[32+size:], more)
	binary.LittleEndian.PutUint32(body[16:], binary.LittleEndian.Uint32(body[16:])+2)
	binary.LittleEndian.PutUint32(body[20:], size+uint32(len(more)))
	return body
}

// stage is a release of small programs; everything but their size is real.
type stage struct {
	t     *testing.T
	r     *release
	list  []*program
	mlx   []module
	built map[string]string
}

func newStage(t *testing.T) *stage {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{t: t, built: small(t), list: programs()}
	s.r = &release{
		root: root, out: filepath.Join(t.TempDir(), "dist"), bin: t.TempDir(), version: testVersion, commit: strings.Repeat("ab", 20),
		when: time.Unix(1790000000, 0).UTC(), home: "https://metalfleet.test", archives: "https://metalfleet.test/r",
	}
	sdk := t.TempDir()
	mit, _, _ := strings.Cut(string(libmlxParts), "\n---\n")
	s.write(filepath.Join(sdk, "mlx.dist-info", "licenses", "LICENSE"), mit)
	s.write(filepath.Join(sdk, "mlx", "include", "metal_cpp", "LICENSE.txt"), own(t))
	if s.mlx, err = libmlx(sdk, "0.0.1"); err != nil {
		t.Fatal(err)
	}
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range s.list {
		from := s.built[p.system()]
		if p.info, err = buildinfo.ReadFile(from); err != nil {
			t.Fatal(err)
		}
		std := module{path: "std", version: strings.TrimPrefix(p.info.GoVersion, "go")}
		if err := std.read(strings.TrimSpace(string(goroot))); err != nil {
			t.Fatal(err)
		}
		body := s.read(from)
		if p.mlx {
			body = withLibmlx(t, body)
		}
		p.modules = []module{std}
		p.path = filepath.Join(s.r.bin, p.goos+p.goarch, p.name)
		s.write(p.path, string(body))
		if err := os.Chmod(p.path, 0o700); err != nil { // another umask
			t.Fatal(err)
		}
	}
	s.write(filepath.Join(s.r.bin, "darwinarm64", "libmlx.dylib"), "mlx")
	s.write(filepath.Join(s.r.bin, "darwinarm64", "mlx.metallib"), "kernels")
	s.pack()
	return s
}

func (s *stage) pack() {
	s.t.Helper()
	if err := errors.Join(clear(s.r.out), s.r.pack(s.r.artefacts(s.list, s.mlx))); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) write(path, text string) {
	s.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) read(path string) []byte {
	s.t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

func (s *stage) at(name string) string { return filepath.Join(s.r.out, name) }

// files returns the contents of the folder.
func (s *stage) files() map[string]string {
	s.t.Helper()
	found, err := os.ReadDir(s.r.out)
	if err != nil {
		s.t.Fatal(err)
	}
	all := map[string]string{}
	for _, f := range found {
		all[f.Name()] = string(s.read(s.at(f.Name())))
	}
	return all
}

// repack changes the files of an archive, by their name without the folder.
func (s *stage) repack(file string, change func(map[string][]byte)) {
	s.t.Helper()
	u, err := unpack(s.at(file), true)
	if err != nil {
		s.t.Fatal(err)
	}
	prefix, short := "", map[string][]byte{}
	for name, body := range u.body {
		if folder, base, ok := strings.Cut(name, "/"); ok {
			prefix, name = folder+"/", base
		}
		short[name] = body
	}
	change(short)
	var entries []entry
	for name, body := range short {
		if body == nil {
			continue
		}
		entries = append(entries, entry{name: prefix + name, body: body, isRun: u.mode[prefix+name]&0o111 != 0})
	}
	if err := tarball(s.at(file), s.r.when, entries); err != nil {
		s.t.Fatal(err)
	}
}

// rebom changes an SBOM.
func (s *stage) rebom(file string, change func(*cdx.BOM)) {
	s.t.Helper()
	var b cdx.BOM
	if err := json.Unmarshal(s.read(s.at(file+bomSuffix)), &b); err != nil {
		s.t.Fatal(err)
	}
	change(&b)
	text, err := json.Marshal(b)
	if err != nil {
		s.t.Fatal(err)
	}
	s.write(s.at(file+bomSuffix), string(text))
}

const (
	macFile    = "metalfleet-agent_" + testVersion + "_darwin_arm64.tar.gz"
	linuxFile  = plugin + "_" + testVersion + "_linux_amd64.tar.gz"
	imageFile  = "metalfleet-gateway_" + testVersion + "_linux.oci.tar"
	chartTest  = "metalfleet-0.9.1-test.1.tgz"
	krewTest   = plugin + "_" + testVersion + "_krew.yaml"
	otherMacOS = plugin + "_" + testVersion + "_darwin_amd64.tar.gz"
)

func TestTheSameReleaseAgainIsTheSameBytes(t *testing.T) {
	s := newStage(t)
	first := s.files()
	if len(first) != len(files(testVersion))+1 {
		t.Fatalf("%d files", len(first))
	}
	for _, p := range s.list { // files that a build at another time and place leaves
		if err := errors.Join(os.Chtimes(p.path, time.Now(), time.Now().Add(time.Hour)), os.Chmod(p.path, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	s.r.bin, s.r.out = t.TempDir(), filepath.Join(t.TempDir(), "another")
	s.pack()
	again := s.files()
	for name, body := range first {
		if again[name] != body {
			t.Errorf("%s differs", name)
		}
	}
}

func TestAReleaseIsCheckedAsADownload(t *testing.T) {
	s := newStage(t)
	if err := check(t.Context(), s.r.root, s.r.out, "", ""); err != nil {
		t.Fatal(err)
	}
	whole := s.files()
	flip := func(b []byte) []byte { return append([]byte("#"), b...) }
	for name, c := range map[string]struct {
		change func()
		keep   bool // the sums are not written again
		want   string
	}{
		"a damaged download":  {change: func() { s.write(s.at(chartTest), "x") }, keep: true, want: sums + " does not name each file"},
		"an unknown file":     {change: func() { s.write(s.at("notes.txt"), "x") }, want: "notes.txt does not belong to it"},
		"a file that is gone": {change: func() { _ = os.Remove(s.at(krewTest)) }, want: krewTest + " is missing"},
		"a provenance of less": {change: func() {
			s.write(s.at(provenanceFile(testVersion)), strings.Replace(whole[provenanceFile(testVersion)], `"name": "`+chartTest, `"name": "x`, 1))
		}, want: provenanceFile(testVersion) + " does not name each file"},
		"a provenance of nothing": {change: func() { s.write(s.at(provenanceFile(testVersion)), "{}") }, want: "no statement of provenance"},
		"no kernels":              {change: func() { s.repack(macFile, func(f map[string][]byte) { f["mlx.metallib"] = nil }) }, want: macFile + " holds"},
		"a file too much":         {change: func() { s.repack(macFile, func(f map[string][]byte) { f["id_rsa"] = []byte("x") }) }, want: macFile + " holds"},
		"its own sums":            {change: func() { s.repack(macFile, func(f map[string][]byte) { f["libmlx.dylib"] = flip(f["libmlx.dylib"]) }) }, want: "its own " + sums},
		"another VERSION":         {change: func() { s.repack(macFile, func(f map[string][]byte) { f["VERSION"] = []byte("v9.9.9\n") }) }, want: "VERSION says"},
		"an agent for Intel":      {change: func() { s.repack(macFile, func(f map[string][]byte) { f["agent"] = s.read(s.built["darwin/amd64"]) }) }, want: "agent is for CpuAmd64"},
		"an agent for Linux":      {change: func() { s.repack(macFile, func(f map[string][]byte) { f["agent"] = s.read(s.built["linux/arm64"]) }) }, want: "agent: invalid magic"},
		"an engine without MLX":   {change: func() { s.repack(macFile, func(f map[string][]byte) { f["engine"] = f["agent"] }) }, want: "would not find libmlx"},
		"an agent with MLX":       {change: func() { s.repack(macFile, func(f map[string][]byte) { f["agent"] = f["engine"] }) }, want: "or needs none"},
		"an unknown library": {change: func() {
			s.repack(macFile, func(f map[string][]byte) {
				f["engine"] = bytes.Replace(f["engine"], []byte("@rpath/libmlx"), []byte("@rpath/other_"), 1)
			})
		}, want: "which macOS does not have"},
		"a newer macOS": {change: func() {
			s.repack(macFile, func(f map[string][]byte) {
				at := bytes.Index(f["agent"], []byte{0x32, 0, 0, 0})
				binary.LittleEndian.PutUint32(f["agent"][at+12:], 15<<16)
			})
		}, want: "agent asks for macOS 15.0"},
		"another version": {change: func() {
			s.repack(linuxFile, func(f map[string][]byte) {
				f[plugin] = bytes.ReplaceAll(f[plugin], []byte(testVersion), []byte("v0.9.0-test.1"))
			})
		}, want: "does not say " + testVersion},
		"a notice that names too few": {change: func() { s.repack(otherMacOS, func(f map[string][]byte) { f["NOTICE"] = []byte("none") }) }, want: "NOTICE does not name std"},
		"no MLX in the notice": {change: func() {
			s.repack(macFile, func(f map[string][]byte) { f["NOTICE"] = bytes.ReplaceAll(f["NOTICE"], []byte("  mlx 0.0.1"), nil) })
		}, want: "NOTICE does not name MLX"},
		"an SBOM of something else":  {change: func() { s.write(s.at(linuxFile+bomSuffix), whole[macFile+bomSuffix]) }, want: "its SBOM is that of another file"},
		"an SBOM that is none":       {change: func() { s.write(s.at(linuxFile+bomSuffix), "{}") }, want: "lacks what CycloneDX 1.6 asks for"},
		"an SBOM that lists too few": {change: func() { s.rebom(linuxFile, func(b *cdx.BOM) { *b.Components = (*b.Components)[1:] }) }, want: "its SBOM does not name std"},
		"an SBOM with a loose end":   {change: func() { s.rebom(linuxFile, func(b *cdx.BOM) { (*b.Components)[0].BOMRef = "x" }) }, want: "which something depends on"},
		"an SBOM without licences":   {change: func() { s.rebom(linuxFile, func(b *cdx.BOM) { (*b.Components)[0].Licenses = nil }) }, want: "no version or licence"},
		"an SBOM that says it twice": {change: func() {
			s.rebom(linuxFile, func(b *cdx.BOM) { *b.Components = append(*b.Components, (*b.Components)[0]) })
		}, want: "twice"},
		"krew's manifest is not ours": {change: func() { s.write(s.at(krewTest), strings.ReplaceAll(whole[krewTest], "sha256: \"", "sha256: \"0")) }, want: "with digest 0"},
		"krew's manifest lacks one":   {change: func() { s.write(s.at(krewTest), strings.Replace(whole[krewTest], "arch: amd64", "arch: s390x", 1)) }, want: `"darwin/s390x"`},
		"a chart of another version": {change: func() {
			s.repack(chartTest, func(f map[string][]byte) { f["Chart.yaml"] = []byte("version: 1.0.0\nappVersion: 1.0.0\n") })
		}, want: "chart: it is 1.0.0 for 1.0.0"},
		"an image that runs as root":   {change: func() { s.image(func(i *image.Image) { i.User = "0:0" }) }, want: "as 0:0"},
		"an image that starts a shell": {change: func() { s.image(func(i *image.Image) { i.Entrypoint = []string{"/bin/sh"} }) }, want: `starts ["/bin/sh"]`},
		"an image for one processor":   {change: func() { s.image(func(i *image.Image) { i.Arch = strings.ReplaceAll(i.Arch, "arm64", "riscv64") }) }, want: "linux/riscv64"},
		"an image of another name":     {change: func() { s.image(func(i *image.Image) { i.Name = "x/operator:v1" }) }, want: "it is named"},
		"an image without licences":    {change: func() { s.image(func(i *image.Image) { delete(i.Files, "/licenses/NOTICE") }) }, want: "holds"},
		"an image with a Mac's program": {change: func() {
			s.image(func(i *image.Image) { i.Files["/gateway"] = s.built["darwin/arm64"] })
		}, want: "bad magic number"},
	} {
		t.Run(name, func(t *testing.T) {
			c.change()
			if !c.keep {
				if err := writeSums(s.r.out); err != nil {
					t.Fatal(err)
				}
			}
			err := check(t.Context(), s.r.root, s.r.out, "", "")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("want %q, got %v", c.want, err)
			}
			if err := os.RemoveAll(s.r.out); err != nil {
				t.Fatal(err)
			}
			for name, body := range whole {
				s.write(s.at(name), body)
			}
		})
	}
}

func TestEveryFileIsSignedWhereThereIsAKey(t *testing.T) {
	s := newStage(t)
	newKey := func(name string) (private, public string) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		secret, err1 := x509.MarshalPKCS8PrivateKey(key)
		open, err2 := x509.MarshalPKIXPublicKey(key.Public())
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		private, public = filepath.Join(s.r.bin, name+".key"), filepath.Join(s.r.bin, name+".pub")
		s.write(private, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
		s.write(public, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: open})))
		return private, public
	}
	private, public := newKey("ours")
	_, other := newKey("other")
	if err := check(t.Context(), s.r.root, s.r.out, "", public); err == nil || !strings.Contains(err.Error(), "signature of "+sums) {
		t.Errorf("without signatures: %v", err)
	}
	unsigned := s.read(s.at(sums))
	s.r.key = private
	s.pack()
	if !bytes.Equal(s.read(s.at(sums)), unsigned) {
		t.Error("signatures change the sums")
	}
	if err := check(t.Context(), s.r.root, s.r.out, "", public); err != nil {
		t.Error(err)
	}
	if err := check(t.Context(), s.r.root, s.r.out, "", other); err == nil || !strings.Contains(err.Error(), "none of the release keys") {
		t.Errorf("with another key: %v", err)
	}
}

// image rewrites the gateway's images with a change.
func (s *stage) image(change func(*image.Image)) {
	s.t.Helper()
	notice := filepath.Join(s.t.TempDir(), "NOTICE")
	s.write(notice, "none")
	var all []image.Image
	for _, arch := range []string{"amd64", "arm64"} {
		i := image.Image{Name: "x/gateway:" + testVersion, Arch: arch, Entrypoint: []string{"/gateway"}, Files: map[string]string{
			"/gateway": s.built["linux/"+arch], "/licenses/LICENSE": filepath.Join(s.r.root, "LICENSE"), "/licenses/NOTICE": notice,
		}}
		change(&i)
		all = append(all, i)
	}
	if err := image.WriteIndex(s.at(imageFile), all); err != nil {
		s.t.Fatal(err)
	}
}
