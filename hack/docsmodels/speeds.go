package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/test/tinymodel"
)

// speed is a line of the last table.
type speed struct{ model, machine, what, seen, peer string }

// readSpeeds reads what is known of each family.
func readSpeeds(root string) (map[string][]speed, error) {
	out := map[string][]speed{}
	if err := readGPU(filepath.Join(root, "docs", "bench", "gpu.json"), out); err != nil {
		return nil, err
	}
	return out, readEngine(filepath.Join(root, "docs", "bench", "engine.json"), out)
}

func readJSON(path string, to any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read a record: %w", err)
	}
	if err := json.Unmarshal(data, to); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// readGPU reads what `make bench-gpu` wrote: shapes beside mlx-lm.
func readGPU(path string, out map[string][]speed) error {
	var record struct {
		GPU    string
		Models []struct {
			Shape, Peer string
			Figures     []struct {
				Name, Unit string
				Ours, Peer []float64
			}
		}
	}
	if err := readJSON(path, &record); err != nil {
		return err
	}
	gpu, _, _ := strings.Cut(record.GPU, ",")
	for _, m := range record.Models {
		c, err := tinymodel.Shape(m.Shape, 4.5)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		peer, _, _ := strings.Cut(m.Peer, ",")
		for _, f := range m.Figures {
			if f.Unit != "tokens/s" {
				continue
			}
			s := speed{model: m.Shape, machine: gpu + ", mlx", what: f.Name, seen: figure(f.Ours, f.Unit), peer: "–"}
			if len(f.Peer) > 0 {
				s.peer = peer + ": " + figure(f.Peer, f.Unit)
			}
			family := alias(string(c.Family))
			out[family] = append(out[family], s)
		}
	}
	return nil
}

// readEngine reads what `make bench-engine` wrote: SmolLM2 on a processor.
func readEngine(path string, out map[string][]speed) error {
	const family, model = "llama", "SmolLM2-135M, 4 bits"
	var record struct {
		Machine struct {
			CPU   string
			Cores int
		}
		Lines []struct {
			Name, Unit string
			Median     float64
		}
	}
	if err := readJSON(path, &record); err != nil {
		return err
	}
	median := map[string]float64{}
	for _, l := range record.Lines {
		if l.Unit == "tokens/s" {
			median[l.Name] = l.Median
		}
	}
	peers := map[string]string{"ref": "llama.cpp", "mlx": "mlx-lm"}
	for _, l := range record.Lines {
		backend, what, _ := strings.Cut(l.Name, ", ")
		peer := peers[backend]
		if l.Unit != "tokens/s" || peer == "" {
			continue
		}
		s := speed{model, fmt.Sprintf("%s, %d cores, %s", strings.ReplaceAll(record.Machine.CPU, "(R)", ""), record.Machine.Cores, backend), what, figure([]float64{l.Median}, l.Unit), "–"}
		if v, ok := median[peer+", "+what]; ok {
			s.peer = peer + ": " + figure([]float64{v}, l.Unit)
		}
		out[family] = append(out[family], s)
	}
	return nil
}

// figure is the median of some runs, as people read it.
func figure(runs []float64, unit string) string {
	if len(runs) == 0 {
		return "–"
	}
	runs = slices.Sorted(slices.Values(runs))
	v := runs[len(runs)/2]
	if v < 100 {
		return fmt.Sprintf("%.1f %s", v, unit)
	}
	return fmt.Sprintf("%.0f %s", v, unit)
}
