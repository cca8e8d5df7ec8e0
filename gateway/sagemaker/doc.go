// Package sagemaker is the front end that Amazon SageMaker calls: /ping, /invocations,
// and for many models in one container /models. It only says what a call means: which
// inference of the protocol it stands for, or which repository is to be registered; the
// calls are carried, decided on and answered by gateway/httpapi.
//
// A Server is safe for concurrent use and has no goroutine of its own. Its lock is held
// for no call of Models.
//
// Source: sagemaker_server.cc of the original 2.73, asked where it leaves things open.
package sagemaker
