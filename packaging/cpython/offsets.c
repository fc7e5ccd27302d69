/* Prints where one CPython version keeps what the task walker reads: a JSON object of offsets in bytes.

   Compiled against the headers of that version by make_tables.py; structs that are private to .c files are not here but
   found by calibrate.py. Keys are those of agentd/freezeframe/agentd/host/cpython/layout.py. */
#define Py_BUILD_CORE 1
#include <Python.h>
#include <frameobject.h>
#include <stddef.h>
#include <stdio.h>
#include <structmember.h>
#include "internal/pycore_interp.h"
#include "internal/pycore_runtime.h"
#if PY_VERSION_HEX < 0x030B0000
#include "internal/pycore_gc.h"
/* Objects/dict-common.h, which is not installed. */
struct _dictkeysobject {
    Py_ssize_t dk_refcnt, dk_size;
    void *dk_lookup;
    Py_ssize_t dk_usable, dk_nentries;
    char dk_indices[];
};
#else
#include "internal/pycore_dict.h"
#include "internal/pycore_frame.h"
#endif
#if PY_VERSION_HEX >= 0x030C0000
#include "internal/pycore_moduleobject.h"
#endif
#if PY_VERSION_HEX >= 0x030E0000
#include "internal/pycore_genobject.h"
#include "internal/pycore_interpframe_structs.h"
#include "internal/pycore_tstate.h"
#endif

#define AT(key, type, member) printf(",\n\"%s\": %zu", key, offsetof(type, member))
#define SIZE(key, type) printf(",\n\"%s\": %zu", key, sizeof(type))

#if PY_VERSION_HEX >= 0x030D0000
/* Where _Py_DebugOffsets, which a process carries itself, tells the same number. */
#define TOLD(key, member) printf(",\n\"told:%s\": %zu", key, offsetof(struct _Py_DebugOffsets, member))

static void debug_offsets(void) {
    SIZE("told", struct _Py_DebugOffsets);
    AT("told.version", struct _Py_DebugOffsets, version);
    AT("told.free_threaded", struct _Py_DebugOffsets, free_threaded);
    TOLD("runtime.interpreters", runtime_state.interpreters_head);
    TOLD("interpreter.next", interpreter_state.next);
    TOLD("interpreter.threads", interpreter_state.threads_head);
    TOLD("interpreter.modules", interpreter_state.imports_modules);
    TOLD("interpreter.gil", interpreter_state.ceval_gil);
    TOLD("thread.next", thread_state.next);
    TOLD("thread.frame", thread_state.current_frame);
    TOLD("thread.ident", thread_state.thread_id);
    TOLD("thread.native", thread_state.native_thread_id);
    TOLD("frame.previous", interpreter_frame.previous);
    TOLD("frame.code", interpreter_frame.executable);
    TOLD("frame.instruction", interpreter_frame.instr_ptr);
    TOLD("frame.locals", interpreter_frame.localsplus);
    TOLD("frame.owner", interpreter_frame.owner);
    TOLD("code.file", code_object.filename);
    TOLD("code.name", code_object.name);
    TOLD("code.qualname", code_object.qualname);
    TOLD("code.lines", code_object.linetable);
    TOLD("code.first_line", code_object.firstlineno);
    TOLD("code.names", code_object.localsplusnames);
    TOLD("code.kinds", code_object.localspluskinds);
    TOLD("code.instructions", code_object.co_code_adaptive);
    TOLD("object.type", pyobject.ob_type);
    TOLD("type.name", type_object.tp_name);
    TOLD("type.flags", type_object.tp_flags);
    TOLD("tuple.items", tuple_object.ob_item);
    TOLD("list.items", list_object.ob_item);
    TOLD("dict.keys", dict_object.ma_keys);
    TOLD("dict.values", dict_object.ma_values);
    TOLD("bytes.data", bytes_object.ob_sval);
    TOLD("str.state", unicode_object.state);
    TOLD("str.length", unicode_object.length);
    TOLD("str.ascii", unicode_object.asciiobject_size);
#if PY_VERSION_HEX >= 0x030E0000
    TOLD("frame.top", interpreter_frame.stackpointer);
    TOLD("set.table", set_object.table);
    TOLD("set.mask", set_object.mask);
    TOLD("generator.name", gen_object.gi_name);
    TOLD("generator.frame", gen_object.gi_iframe);
    TOLD("generator.state", gen_object.gi_frame_state);
#endif
}
#endif

static void runtime(void) {
    AT("runtime.interpreters", _PyRuntimeState, interpreters.head);
    AT("interpreter.next", PyInterpreterState, next);
#if PY_VERSION_HEX >= 0x030B0000
    AT("interpreter.threads", PyInterpreterState, threads.head);
#else
    AT("interpreter.threads", PyInterpreterState, tstate_head);
#endif
#if PY_VERSION_HEX >= 0x030C0000
    AT("interpreter.modules", PyInterpreterState, imports.modules);
    AT("interpreter.gil", PyInterpreterState, ceval.gil);
#else
    AT("interpreter.modules", PyInterpreterState, modules);
    AT("runtime.gil", _PyRuntimeState, ceval.gil);
#endif
    AT("gil.holder", struct _gil_runtime_state, last_holder);
    AT("gil.locked", struct _gil_runtime_state, locked);
    SIZE("gil.size", struct _gil_runtime_state);
    AT("thread.next", PyThreadState, next);
    AT("thread.ident", PyThreadState, thread_id);
#if PY_VERSION_HEX >= 0x030B0000
    AT("thread.native", PyThreadState, native_thread_id);
#endif
#if PY_VERSION_HEX >= 0x030D0000
    AT("thread.frame", PyThreadState, current_frame);
#elif PY_VERSION_HEX >= 0x030B0000
    AT("thread.cframe", PyThreadState, cframe);
    AT("cframe.frame", _PyCFrame, current_frame);
#else
    AT("thread.frame", PyThreadState, frame);
#endif
#if PY_VERSION_HEX >= 0x030E0000
    AT("interpreter.tasks", PyInterpreterState, asyncio_tasks_head);
    AT("thread.tasks", _PyThreadStateImpl, asyncio_tasks_head);
#endif
}

static void objects(void) {
    AT("object.type", PyObject, ob_type);
    AT("type.name", PyTypeObject, tp_name);
    AT("type.basicsize", PyTypeObject, tp_basicsize);
    AT("type.flags", PyTypeObject, tp_flags);
    AT("type.base", PyTypeObject, tp_base);
    AT("type.dict", PyTypeObject, tp_dict);
    AT("type.dictoffset", PyTypeObject, tp_dictoffset);
    AT("type.keys", PyHeapTypeObject, ht_cached_keys);
    AT("set.used", PySetObject, used);
    AT("set.mask", PySetObject, mask);
    AT("set.table", PySetObject, table);
    AT("dict.used", PyDictObject, ma_used);
    AT("dict.keys", PyDictObject, ma_keys);
    AT("dict.values", PyDictObject, ma_values);
    AT("keys.entries", struct _dictkeysobject, dk_nentries);
    AT("keys.indices", struct _dictkeysobject, dk_indices);
#if PY_VERSION_HEX >= 0x030B0000
    AT("keys.log2_index_bytes", struct _dictkeysobject, dk_log2_index_bytes);
    AT("keys.kind", struct _dictkeysobject, dk_kind);
    AT("values.first", struct _dictvalues, values);
#else
    AT("keys.size", struct _dictkeysobject, dk_size);
#endif
    AT("weakref.object", PyWeakReference, wr_object);
    SIZE("str.ascii", PyASCIIObject);
    SIZE("str.compact", PyCompactUnicodeObject);
    AT("str.length", PyASCIIObject, length);
    AT("str.state", PyASCIIObject, state);
    AT("sized.size", PyVarObject, ob_size);
    AT("bytes.data", PyBytesObject, ob_sval);
    AT("tuple.items", PyTupleObject, ob_item);
    AT("list.items", PyListObject, ob_item);
    AT("float.value", PyFloatObject, ob_fval);
    AT("function.closure", PyFunctionObject, func_closure);
    AT("function.code", PyFunctionObject, func_code);
    AT("cell.value", PyCellObject, ob_ref);
    AT("method.self", PyMethodObject, im_self);
    AT("method.function", PyMethodObject, im_func);
    AT("member.definition", PyMemberDescrObject, d_member);
    AT("definition.offset", PyMemberDef, offset);
#if PY_VERSION_HEX >= 0x030C0000
    AT("int.tag", PyLongObject, long_value.lv_tag);
    AT("int.digits", PyLongObject, long_value.ob_digit);
    AT("module.dict", PyModuleObject, md_dict);
#else
    AT("int.tag", PyVarObject, ob_size);
    AT("int.digits", PyLongObject, ob_digit);
    SIZE("module.dict", PyObject); /* its first member: Objects/moduleobject.c */
#endif
}

static void code_and_frames(void) {
    AT("code.name", PyCodeObject, co_name);
    AT("code.file", PyCodeObject, co_filename);
    AT("code.first_line", PyCodeObject, co_firstlineno);
    AT("code.lines", PyCodeObject, co_linetable);
#if PY_VERSION_HEX >= 0x030B0000
    AT("code.qualname", PyCodeObject, co_qualname);
    AT("code.instructions", PyCodeObject, co_code_adaptive);
    AT("code.names", PyCodeObject, co_localsplusnames);
    AT("code.kinds", PyCodeObject, co_localspluskinds);
    AT("generator.name", PyGenObject, gi_name);
    AT("generator.state", PyGenObject, gi_frame_state);
    AT("generator.frame", PyGenObject, gi_iframe);
    AT("frame.previous", struct _PyInterpreterFrame, previous);
    AT("frame.locals", struct _PyInterpreterFrame, localsplus);
    AT("frame.owner", struct _PyInterpreterFrame, owner);
#if PY_VERSION_HEX >= 0x030D0000
    AT("frame.code", struct _PyInterpreterFrame, f_executable);
    AT("frame.instruction", struct _PyInterpreterFrame, instr_ptr);
#else
    AT("frame.code", struct _PyInterpreterFrame, f_code);
    AT("frame.instruction", struct _PyInterpreterFrame, prev_instr);
#endif
#if PY_VERSION_HEX >= 0x030E0000
    AT("frame.top", struct _PyInterpreterFrame, stackpointer);
#else
    AT("frame.top", struct _PyInterpreterFrame, stacktop);
#endif
#else
    AT("code.names", PyCodeObject, co_varnames);
    AT("code.cell_names", PyCodeObject, co_cellvars);
    AT("code.free_names", PyCodeObject, co_freevars);
    AT("code.instructions", PyCodeObject, co_code);
    AT("generator.name", PyGenObject, gi_name);
    AT("generator.frame", PyGenObject, gi_frame);
    AT("frame.previous", PyFrameObject, f_back);
    AT("frame.code", PyFrameObject, f_code);
    AT("frame.instruction", PyFrameObject, f_lasti);
    AT("frame.depth", PyFrameObject, f_stackdepth);
    AT("frame.stack", PyFrameObject, f_valuestack);
    AT("frame.state", PyFrameObject, f_state);
    AT("frame.locals", PyFrameObject, f_localsplus);
#endif
}

int main(void) {
    printf("{\n\"version\": \"%s\"", PY_VERSION);
    runtime();
    objects();
    code_and_frames();
#if PY_VERSION_HEX >= 0x030D0000
    debug_offsets();
#endif
    printf("\n}\n");
    return 0;
}
