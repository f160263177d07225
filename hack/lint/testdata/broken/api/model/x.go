package model

import (
	_ "errors"
	_ "golang.org/x/sys/unix"
	_ "k8s.io/apimachinery/pkg/types"
)
