package main

import (
	"strings"
	"testing"
)

func TestConfigAndChartAreHeldAgainstEachOther(t *testing.T) {
	const object = "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n  labels:\n    helm.sh/chart: x\nspec:\n  type: ClusterIP\n"
	if said, err := compare([]byte(strings.Replace(object, "  labels:\n    helm.sh/chart: x\n", "", 1)), []byte(object)); err != nil || !strings.HasPrefix(said, "1 ") {
		t.Errorf("%q, %v", said, err)
	}
	for want, texts := range map[string][2]string{
		"differs":           {object, strings.Replace(object, "ClusterIP", "NodePort", 1)},
		"makes no Pod/b":    {strings.NewReplacer("Service", "Pod", "name: a", "name: b").Replace(object), object},
		"config/ makes no ": {object, object + "---\n" + strings.Replace(object, "name: a", "name: b", 1)},
	} {
		if _, err := compare([]byte(texts[0]), []byte(texts[1])); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
