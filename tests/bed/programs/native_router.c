/* smg's router inside an ELF program of its own: name, executable and command line as of a gateway built without
 * Python, which no package index has. Its main thread and its tokio threads run the same Rust code as the wheel's.
 *
 *   native_router launch --host ... ; PYTHONPATH names the site-packages that hold smg.
 */
#include <Python.h>

static const char *const launch =
    "import sys, types, runpy\n"
    "quiet = types.ModuleType('setproctitle')\n" /* a native gateway keeps its command line */
    "quiet.setproctitle = lambda title: None\n"
    "sys.modules['setproctitle'] = quiet\n"
    "del sys.argv[1]\n"
    "runpy.run_module('smg.launch_router', run_name='__main__')\n";

int main(int argc, char **argv)
{
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    config.parse_argv = 0;
    PyStatus status = PyConfig_SetBytesArgv(&config, argc, argv);
    if (!PyStatus_Exception(status))
        status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status))
        Py_ExitStatusException(status);
    return PyRun_SimpleString(launch) == 0 ? 0 : 1;
}
