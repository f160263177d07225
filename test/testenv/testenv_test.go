//go:build !race

package testenv

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"metalfleet.dev/metalfleet/test/patience"
)

// childVariable has the test binary play a program that starts a control plane
// and is then killed.
const childVariable = "TESTENV_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		playChild()
	}
	os.Exit(m.Run())
}

var widgets = schema.GroupVersionResource{Group: "testenv.example", Version: "v1", Resource: "widgets"}

func widget(name string, size int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "testenv.example/v1", "kind": "Widget",
		"metadata": map[string]any{"name": name}, "spec": map[string]any{"size": size},
	}}
}

func fixture() Options { return Options{CRDs: []string{"testdata/*.yaml"}} }

func started(t *testing.T, o Options) *Env {
	t.Helper()
	e, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func TestServesCRDsAndKeepsObjectsOverARestart(t *testing.T) {
	o := fixture()
	o.Controllers = true
	e := started(t, o)
	up := time.Now()
	ctx := t.Context()
	client, err := dynamic.NewForConfig(e.Config())
	if err != nil {
		t.Fatal(err)
	}
	things := client.Resource(widgets).Namespace("default")
	if d := up.Sub(establishedSince(t, e, "widgets.testenv.example")); d < settle {
		t.Errorf("Start came back %s after the kind was established: the API server still delays creates", d)
	}
	if _, err := things.Create(ctx, widget("good", 3), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = things.Create(ctx, widget("odd", 13), metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "13 brings bad luck") {
		t.Errorf("a rule of the CRD did not refuse: %v", err)
	}

	if err := e.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	if pids := e.PIDs(); pids["kube-apiserver"] != 0 || pids["etcd"] == 0 {
		t.Errorf("API server stopped, etcd kept: %v", pids)
	}
	if _, err := things.Get(ctx, "good", metav1.GetOptions{}); err == nil {
		t.Error("the API server answers although it was stopped")
	}
	url := e.URL
	if err := e.StartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	if e.URL != url {
		t.Errorf("came back at %s, was at %s", e.URL, url)
	}
	if _, err := things.Get(ctx, "good", metav1.GetOptions{}); err != nil {
		t.Errorf("the object is gone after the restart: %v", err)
	}
	namespacesEnd(t, e)
	stopsEverything(t, e)
}

// establishedSince says since when a kind is served.
func establishedSince(t *testing.T, e *Env, name string) time.Time {
	t.Helper()
	clients, err := apiextensions.NewForConfig(e.Config())
	if err != nil {
		t.Fatal(err)
	}
	since, err := established(t.Context(), clients.ApiextensionsV1().CustomResourceDefinitions(), name)
	if err != nil {
		t.Fatal(err)
	}
	return since
}

// namespacesEnd: only a controller takes a namespace away, and it has to find
// the API server again after its restart.
func namespacesEnd(t *testing.T, e *Env) {
	t.Helper()
	ctx := t.Context()
	clients, err := kubernetes.NewForConfig(e.Config())
	if err != nil {
		t.Fatal(err)
	}
	spaces := clients.CoreV1().Namespaces()
	if _, err := spaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "short"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := spaces.Delete(ctx, "short", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace ends", func() bool {
		_, err := spaces.Get(ctx, "short", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func stopsEverything(t *testing.T, e *Env) {
	t.Helper()
	pids := e.PIDs()
	if len(pids) != 3 {
		t.Errorf("three programs run: %v", pids)
	}
	if err := e.Stop(); err != nil {
		t.Fatal(err)
	}
	for name, pid := range pids {
		if alive(pid) {
			t.Errorf("%s (pid %d) outlived Stop", name, pid)
		}
	}
	for _, dir := range []string{e.dir, e.sockets} {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s outlived Stop: %v", dir, err)
		}
	}
	if err := e.Stop(); err != nil {
		t.Errorf("Stop again: %v", err)
	}
}

func TestAStartThatFailsLateLeavesNothing(t *testing.T) {
	o := fixture()
	o.Dir = t.TempDir()
	o.CRDs = []string{"testdata/refused/*.yaml"} // reads well; the API server refuses it
	e := &Env{}
	err := e.start(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "apply CRD") {
		t.Fatalf("Start took a CRD the API server refuses: %v", err)
	}
	if len(e.PIDs()) == 0 {
		t.Fatal("nothing ran, so this test shows nothing")
	}
	pids := e.PIDs()
	if err := e.Stop(); err != nil {
		t.Fatal(err)
	}
	for name, pid := range pids {
		if alive(pid) {
			t.Errorf("%s (pid %d) outlived the failed start", name, pid)
		}
	}
	// And by way of Start itself.
	if _, err := Start(t.Context(), o); err == nil {
		t.Fatal("Start took a CRD the API server refuses")
	}
	if leftovers := processesNaming(t, o.Dir); len(leftovers) > 0 {
		t.Errorf("these are left: %v", leftovers)
	}
}

func TestAKilledStarterTakesItsControlPlaneAlong(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ties the life of a child to its parent's")
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "ready\n" {
		t.Fatalf("the child said %q, %v", line, err)
	}
	if n := len(processesNaming(t, dir)); n < 2 {
		t.Fatalf("%d programs run, so this test shows nothing", n)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the child ended by itself")
	}
	eventually(t, "the programs end with their starter", func() bool {
		return len(processesNaming(t, dir)) == 0
	})
}

func playChild() {
	o := fixture()
	o.Dir = os.Getenv(childVariable)
	if _, err := Start(context.Background(), o); err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	os.Stdout.WriteString("ready\n")
	select {}
}

func TestMissingProgramsFailWithTheWayToGetThem(t *testing.T) {
	t.Setenv(assetsVariable, t.TempDir())
	_, err := Start(t.Context(), fixture())
	if !errors.Is(err, errNoAssets) || !strings.Contains(err.Error(), "make kube") {
		t.Errorf("got %v", err)
	}
}

func TestAGlobWithoutAMatchFails(t *testing.T) {
	_, err := Start(t.Context(), Options{CRDs: []string{"testdata/none/*.yaml"}})
	if err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("got %v", err)
	}
}

func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// processesNaming lists the commands that have a folder in their arguments.
func processesNaming(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(files) == 0 {
		t.Skip("needs /proc to look for processes that are left")
	}
	var out []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil && strings.Contains(string(b), dir) {
			out = append(out, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return out
}

func eventually(t *testing.T, what string, ask func() bool) {
	t.Helper()
	within := patience.Of(t)
	deadline := time.Now().Add(within)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ask() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", within, what)
		}
		<-tick.C
	}
}
